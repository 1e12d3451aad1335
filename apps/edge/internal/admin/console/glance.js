// The figures at the top, and what deserves attention.

import { byId, el, keyed, setAttr, setText } from './dom.js';

export function renderGlance(view) {
  const { nodes, queue, live, ended } = view.snapshot;
  const ready = nodes.filter((n) => n.state === 'ready' && !n.drained).length;
  const wanted = nodes.filter((n) => n.state !== 'disabled').length;
  const adapters = nodes.flatMap((n) => n.adapters);
  const inFlight = adapters.reduce((sum, a) => sum + a.in_flight, 0);
  const capacity = adapters.reduce((sum, a) => sum + (a.available ? a.capacity : 0), 0);
  const failed = ended.runs.filter((r) => !['ok', 'cancelled', 'client_gone'].includes(r.code)).length;
  keyed(byId('glance'), [
    { name: 'Nodes ready', value: `${ready} of ${wanted}`, tone: wanted === 0 ? 'off' : ready < wanted ? 'bad' : 'good' },
    { name: 'Places taken', value: `${inFlight} of ${capacity}`, tone: capacity === 0 && wanted > 0 ? 'bad' : capacity > 0 && inFlight >= capacity ? 'wait' : 'off' },
    { name: 'Waiting', value: String(queue.queued), tone: queue.queued > 0 ? 'wait' : 'off' },
    { name: 'Live', value: String(live.total), tone: 'off' },
    { name: `Failed of the last ${ended.runs.length}`, value: String(failed), tone: failed > 0 ? 'bad' : 'off' },
  ].map((figure, i) => ({ ...figure, i })), {
    key: (f) => f.i,
    make: () => el('div', {}, el('dt'), el('dd')),
    update: (row, f) => {
      setText(row.firstChild, f.name);
      setText(row.lastChild, f.value);
      setAttr(row, 'data-tone', f.tone);
    },
  });
  const { reasons, warnings } = view.snapshot;
  keyed(byId('warnings'), [...reasons.map((t) => ({ t, tone: 'bad' })), ...warnings.map((t) => ({ t, tone: 'wait' }))], {
    key: (w) => w.tone + w.t,
    make: (w) => el('li', { 'data-tone': w.tone, text: (w.tone === 'bad' ? 'Takes no work: ' : '') + w.t }),
    update: () => {},
  });
}
