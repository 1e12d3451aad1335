// Why a model isn't served, or where a request for it would go.

import { Refused, getJSON } from './api.js';
import { byId, el } from './dom.js';
import { plural, span } from './format.js';
import { words } from './words.js';

export function makeWhy() {
  const form = byId('why-form');
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const asked = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) asked.set(name, value);
    const result = byId('why-result');
    result.replaceChildren(el('p', { class: 'muted', text: 'Asking…' }));
    try {
      result.replaceChildren(...answer(await getJSON(`why?${asked}`)));
    } catch (error) {
      result.replaceChildren(el('p', { class: 'error', text: error instanceof Refused ? error.message : `No answer: ${error.message}` }));
    }
  });
  return (view) => suggest(view.snapshot);
}

const mostSuggested = 200;
let suggested = '';

// suggest fills in the models that can be asked for.
function suggest(snapshot) {
  const names = new Set(snapshot.queue.routes.map((r) => r.route).filter((name) => name && name !== '*'));
  for (const n of snapshot.nodes) for (const a of n.adapters) for (const m of a.models) names.add(m.name);
  const list = [...names].slice(0, mostSuggested);
  if (suggested === list.join('\n')) return;
  suggested = list.join('\n');
  byId('models').replaceChildren(...list.map((value) => el('option', { value })));
}

function answer(w) {
  const taking = w.candidates.filter((c) => c.takes_work);
  const onRoute = w.candidates.filter((c) => c.on_route);
  const verdict = w.problems.length > 0 ? ['It is refused now.', 'bad']
    : taking.length > 0 ? [`It would go to ${taking.map(place).slice(0, 5).join(', ')}${taking.length > 5 ? ', …' : ''}.`, 'good']
      : [w.route?.fail_fast ? 'It is refused at once: nothing takes it now.' : 'It waits: nothing takes it now.', 'wait'];
  const parts = [el('p', { class: 'verdict', 'data-tone': verdict[1] }, el('strong', { text: verdict[0] }))];
  if (w.problems.length > 0) parts.push(el('ul', {}, ...w.problems.map((p) => el('li', { text: `${p.text} (${p.code})` }))));
  if (w.route) {
    parts.push(el('p', { class: 'muted', text: `Route ${w.route.model}${w.target && w.target !== w.model ? `, which asks for ${w.target}` : ''}: `
      + `${w.queue.waiting} of at most ${w.route.queue_depth} wait`
      + (w.queue.waiting > 0 ? `, the longest for ${span(w.queue.longest_ms)}` : '') + `; nobody longer than ${span(w.route.queue_wait_ms)}.` }));
  }
  const shown = onRoute.length > 0 ? onRoute : w.candidates;
  if (shown.length > 0) parts.push(el('ul', { class: 'candidates', 'aria-label': 'Adapters' }, ...shown.slice(0, 100).map(candidate)));
  const rest = w.candidates.length - Math.min(shown.length, 100);
  if (rest > 0) parts.push(el('p', { class: 'muted', text: `The route leads elsewhere than to ${plural(rest, 'further adapter')}.` }));
  return parts;
}

const place = (c) => `${c.node} / ${c.adapter}`;

function candidate(c) {
  return el('li', { class: 'panel' },
    el('div', { class: 'line' }, el('span', { class: 'name', text: place(c) }),
      el('span', { class: 'chip', 'data-tone': c.takes_work ? 'good' : 'bad', text: c.takes_work ? 'takes it' : 'takes nothing' }),
      el('span', { class: 'muted', text: `node ${words(c.state)}, ${c.in_flight} of ${c.capacity} in flight${c.loaded ? ', loaded' : ''}` })),
    c.reasons.length > 0 && el('ul', {}, ...c.reasons.map((r) => el('li', { text: `${r.text} (${r.code})` }))));
}
