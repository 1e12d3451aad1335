// A card for each node, with its adapters.

import { byId, el, keyed, setAttr, setText, show } from './dom.js';
import { age, plural } from './format.js';
import { setChip } from './table.js';
import { cardTone, nodeTone, words } from './words.js';

const mostNodes = 100;
const fewModels = 4;
const mostModels = 200;

export function renderNodes(view) {
  const { nodes, queue } = view.snapshot;
  const places = new Map();
  for (const p of queue.places) places.set(`${p.node}/${p.adapter}/${p.generation}`, p);
  const versions = new Set(nodes.map((n) => n.version).filter(Boolean));
  setText(byId('nodes-count'), String(nodes.length));
  show(byId('nodes-empty'), nodes.length === 0);
  show(byId('nodes-more'), nodes.length > mostNodes);
  setText(byId('nodes-more'), `${nodes.length - mostNodes} more are not shown; iop-edge ctl nodes lists all.`);
  keyed(byId('node-list'), nodes.slice(0, mostNodes), {
    key: (n) => n.id,
    refuge: byId('nodes-title'),
    make: makeCard,
    update: (card, n) => updateCard(card, n, view, places, versions.size > 1),
  });
}

function makeCard(n) {
  const facts = ['Version', 'Generation', 'Link age', 'Last heard'].map((name) => el('div', {}, el('dt', { text: name }), el('dd')));
  return el('article', { class: 'panel node', 'aria-label': `Node ${n.id}` },
    el('h3', {}, el('span', { text: n.id, class: 'name' }), el('span', { class: 'chip' })),
    el('p', { class: 'reason' }), el('dl', { class: 'facts' }, ...facts), el('ul', { class: 'adapters', 'aria-label': `Adapters of ${n.id}` }));
}

function updateCard(card, n, view, places, mixed) {
  const [head, reason, facts, adapters] = card.children;
  setAttr(card, 'data-tone', cardTone(n));
  setChip(head.children[1], n.drained ? `${words(n.state)}, drained` : words(n.state), nodeTone(n));
  const why = n.drained && !n.reason ? 'An operator keeps new work from it.' : n.reason;
  setText(reason, why);
  show(reason, Boolean(why));
  const since = (at) => (at ? age(view.now() - Date.parse(at)) : '–');
  const [version, generation, link, heard] = [...facts.children].map((f) => f.lastChild);
  const odd = mixed && Boolean(n.version) && n.version !== view.snapshot.version;
  setText(version, (n.version || '–') + (odd ? `, the Edge has ${view.snapshot.version}` : ''));
  setAttr(version, 'data-tone', odd ? 'wait' : 'none');
  setText(generation, n.generation ? String(n.generation) : '–');
  setText(link, since(n.since));
  setText(heard, n.last_heartbeat ? `${since(n.last_heartbeat)} ago` : '–');
  keyed(adapters, n.adapters, {
    key: (a) => a.name,
    make: makeAdapter,
    update: (row, a) => updateAdapter(row, a, places.get(`${n.id}/${a.name}/${n.generation}`), view),
  });
}

function makeAdapter(a) {
  const bar = el('span', { class: 'bar', 'aria-hidden': 'true' }, el('span'));
  return el('li', {},
    el('div', { class: 'line' }, el('span', { class: 'name', text: a.name }), el('span', { class: 'muted' }), el('span', { class: 'chip' }),
      el('span', { class: 'load' }, el('span', { class: 'number' }), bar)),
    el('p', { class: 'note' }), el('p', { class: 'models' }),
    el('details', {}, el('summary'), el('p', { class: 'models' })));
}

function updateAdapter(row, a, place, view) {
  const [line, note, few, more] = row.children;
  const [, kind, chip, load] = line.children;
  setText(kind, a.version && a.version !== 'unknown' ? `${a.kind} ${a.version}` : a.kind);
  setChip(chip, a.available ? 'available' : 'unavailable', a.available ? 'good' : 'bad');
  setText(load.firstChild, `${a.in_flight} of ${a.capacity} in flight`);
  // Eighths, by attribute: the page's policy allows no style of an element's own.
  setAttr(load.lastChild, 'data-eighths', a.capacity > 0 ? Math.min(8, Math.ceil((a.in_flight * 8) / a.capacity)) : 0);
  const notes = [a.available ? '' : a.reason, ...placeNotes(place, view)].filter(Boolean).join('; ');
  setText(note, notes);
  show(note, Boolean(notes));
  const names = a.models.map((m) => m.name + (m.loaded ? ' (loaded)' : ''));
  setText(few, names.slice(0, fewModels).join(', ') || 'no models named');
  show(more, names.length > fewModels);
  setText(more.firstChild, plural(names.length - fewModels, 'more model'));
  const hidden = Math.max(0, names.length - mostModels);
  // A text of many names may be longer than a text of others usually is.
  const rest = more.lastChild;
  const parts = names.slice(fewModels, mostModels).map((name) => ({ name }));
  if (hidden > 0) parts.push({ name: `and ${hidden} more` });
  keyed(rest, parts.map((p, i) => ({ ...p, i })), {
    key: (p) => p.i, make: () => el('span', { class: 'model' }), update: (span, p) => setText(span, p.name),
  });
}

// placeNotes is what the scheduler knows of an adapter that isn't as usual.
function placeNotes(p, view) {
  if (!p) return [];
  const notes = [];
  if (p.broken) {
    const left = Date.parse(p.broken.until) - view.now();
    const next = p.broken.trying ? 'one request tries it now' : left > 0 ? `one may try it in ${age(left)}` : 'the next request tries it';
    notes.push(`taken out: it failed ${p.broken.failures} times in a row (${p.broken.why}), ${next}`);
  }
  if (p.saturated) notes.push('its node refused work although a place seemed free');
  if (p.unconfirmed > 0) notes.push(`${plural(p.unconfirmed, 'place')} held by runs that are over; the node hasn't said so yet`);
  if (p.adopted > 0) notes.push(`${plural(p.adopted, 'place')} held by runs of an earlier connection`);
  return notes;
}
