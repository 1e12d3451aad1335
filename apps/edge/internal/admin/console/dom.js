// How the page is built: elements and text, never markup. What callers, nodes and providers chose (names of models and
// principals, reasons, versions) comes in by textContent only, so nothing of it can become an element or a script.

// Characters that hide, or reorder what stands beside them.
const deceptive = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const longest = 300;

// clean is how a text of others is shown: without such characters, and bounded.
export function clean(value) {
  const text = String(value ?? '').replace(deceptive, '\ufffd');
  return text.length > longest ? text.slice(0, longest) + '…' : text;
}

export const byId = (id) => document.getElementById(id);

// el makes an element. props: class, text, and attributes by name; a child is a node or nothing.
export function el(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === 'class') e.className = value;
    else if (name === 'text') e.textContent = clean(value);
    else if (value !== undefined && value !== null) e.setAttribute(name, value);
  }
  e.append(...children.filter(Boolean));
  return e;
}

// setText changes a text only when it is another, so that a screen reader isn't told the same again.
export function setText(e, value) {
  const text = clean(value);
  if (e.textContent !== text) e.textContent = text;
}

export function setAttr(e, name, value) {
  if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value);
}

export function show(e, visible) { e.hidden = !visible; }

const rows = new WeakMap(); // the children of an element that keyed filled, by key

// keyed makes parent's children those of items, in their order. A child stays the same element as long as its item is
// there: the focus stays where it is, and a button doesn't move away from under a finger. refuge gets the focus when the child that has
// it goes.
export function keyed(parent, items, { key, make, update, refuge }) {
  const old = rows.get(parent) ?? new Map();
  const next = new Map();
  for (const item of items) next.set(key(item), old.get(key(item)));
  for (const [k, child] of old) {
    if (next.has(k)) continue;
    const focused = child.contains(document.activeElement);
    child.remove();
    if (focused) refuge?.focus({ preventScroll: true });
  }
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = key(item);
    const child = next.get(k) ?? make(item);
    next.set(k, child);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    update(child, item);
  }
  rows.set(parent, next);
}
