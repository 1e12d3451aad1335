// What happened last, the newest first.

import { byId } from './dom.js';
import { clock, plural, span } from './format.js';
import { Table, chip, lines, text } from './table.js';
import { eventTone, words } from './words.js';

const kept = 25; // of each list

// about says what an event is about: the request, and the node.
function about(e) {
  const place = [e.node, e.adapter].filter(Boolean).join(' / ');
  const run = [e.model, e.principal].filter(Boolean).join(', ');
  return [run || e.run_id, place].filter(Boolean).join(' on ') || 'the Edge';
}

function said(e) {
  if (e.kind === 'missed') {
    const why = { slow: 'this page read too slowly', forgotten: 'too long ago', restarted: 'the Edge has restarted' }[e.why] ?? e.why;
    return `${e.missed === null ? 'Some events' : plural(e.missed, 'event')} can't be shown: ${why}.`;
  }
  const parts = [];
  if (e.position) parts.push(`position ${e.position}`);
  if (e.attempt > 1) parts.push(`attempt ${e.attempt}`);
  if (e.code && e.code !== e.kind) parts.push(words(e.code));
  if (e.text) parts.push(e.text);
  if (e.kind.startsWith('run_') && e.after_ms > 0) parts.push(`after ${span(e.after_ms)}`);
  if (e.run_id) parts.push(e.run_id);
  return parts.join(', ');
}

// Events remembers the newest and shows them: those of runs beside all others, which they would push out within a second.
export class Events {
  #number = 0;
  #lists = [makeList('node-events'), makeList('run-events')];

  add(e) {
    const { list } = this.#lists[e.kind.startsWith('run_') ? 1 : 0];
    list.unshift({ ...e, number: ++this.#number });
    if (list.length > kept) list.length = kept;
  }

  render() {
    for (const { table, list } of this.#lists) table.render(list);
  }
}

function makeList(id) {
  return { list: [], table: new Table(byId(id), [
    { name: 'At', class: 'time', cell: text((e) => (e.at ? clock(e.at) : '–')) },
    { name: 'Event', ...chip((e) => [words(e.kind), eventTone(e)]) },
    { name: 'What', ...lines((e) => [about(e), said(e)]) },
  ], { key: (e) => e.number, empty: byId(`${id}-empty`), refuge: byId(`${id}-title`), few: 10 }) };
}
