// The providers' keys by name: their state and revision. The API has no secret to show.

import { byId, el, setText, show } from './dom.js';
import { age } from './format.js';
import { Table, lines, setChip, text } from './table.js';
import { words } from './words.js';

const tones = { active: 'good', disabled: 'wait', revoked: 'bad' };

export function makeSlots() {
  let view = null;
  const table = new Table(byId('slots-table'), [
    { name: 'Slot', ...lines((s) => [s.id, s.profile && `profile ${s.profile}`]) },
    { name: 'State', make: (cell) => cell.append(el('span', { class: 'chip' }), el('span', { class: 'sub' })), cell: (cell, s) => {
      setChip(cell.firstChild, words(s.state), tones[s.state] ?? 'off');
      setText(cell.lastChild, s.reason);
      show(cell.lastChild, Boolean(s.reason));
    } },
    { name: 'Revision', class: 'num', cell: text((s) => String(s.revision)) },
    { name: 'Since', class: 'num', cell: text((s) => (s.since ? `${age(view.now() - Date.parse(s.since))} ago` : '–')) },
    { name: 'Source', cell: text((s) => s.source || '–') },
    { name: 'Sent to', cell: text((s) => s.origin.replace(/^https:\/\/(.*):443$/, '$1') || '–') },
    { name: 'Routes', cell: text((s) => s.routes.join(', ') || '–') },
    { name: 'Nodes', cell: text((s) => s.nodes.join(', ') || '–') },
  ], { key: (s) => s.id, refuge: byId('slots-title') });
  return (next) => {
    view = next;
    const list = view.snapshot.slots;
    show(byId('slots'), list.length > 0);
    show(byId('nav-slots'), list.length > 0);
    setText(byId('slots-count'), String(list.length));
    table.render(list);
  };
}
