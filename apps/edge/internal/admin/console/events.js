// What happened last, the newest first.

import { byId, setText } from './dom.js';
import { clock, plural, span } from './format.js';
import { Table, chip, lines, text } from './table.js';
import { eventTone, words } from './words.js';

const kept = 50;

// about says what an event is about: the node, and the run.
function about(e) {
  const place = [e.node, e.adapter].filter(Boolean).join(' / ');
  const run = [e.model, e.principal].filter(Boolean).join(', ');
  return [run || place || 'the Edge', [run && place, e.run_id].filter(Boolean).join(', ')];
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
  return parts.join(', ') || '–';
}

// Events remembers the newest and shows them.
export class Events {
  #list = [];
  #number = 0;
  #table = new Table(byId('events-table'), [
    { name: 'At', cell: text((e) => (e.at ? clock(e.at) : '–')) },
    { name: 'Event', ...chip((e) => [words(e.kind), eventTone(e)]) },
    { name: 'About', ...lines(about) },
    { name: 'What', class: 'wide', cell: text(said) },
  ], { key: (e) => e.number, empty: byId('events-empty'), refuge: byId('events-title') });

  add(e) {
    this.#list.unshift({ ...e, number: ++this.#number });
    if (this.#list.length > kept) this.#list.length = kept;
  }

  render() {
    setText(byId('events-count'), this.#list.length === kept ? `the last ${kept}` : '');
    this.#table.render(this.#list);
  }
}
