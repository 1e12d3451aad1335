// The live requests, and those that ended last.

import { byId, el, setAttr, setText, show } from './dom.js';
import { age, bytes, clock, rate, span, waited } from './format.js';
import { Table, chip, lines, text } from './table.js';
import { codeTone, runTone, words } from './words.js';

const model = (r) => r.model || r.target || '–';
const where = (r) => (r.node ? [r.node, r.adapter] : ['–', r.adapter]);

// request is the column that names a run; its button opens all that is known of it.
function request(open) {
  return {
    name: 'Request',
    class: 'id',
    make: (cell) => {
      const button = el('button', { type: 'button', class: 'plain' }, el('span', { class: 'main' }));
      button.addEventListener('click', () => open(cell.run, button));
      cell.append(button, el('span', { class: 'sub' }));
    },
    cell: (cell, r) => {
      cell.run = r;
      setText(cell.firstChild.firstChild, model(r));
      setAttr(cell.firstChild, 'aria-label', `Timeline of ${model(r)}, run ${r.run_id}`.slice(0, 400));
      setText(cell.lastChild, r.run_id + (r.background ? ', background' : '') + (r.attempts > 1 ? `, attempt ${r.attempts}` : ''));
    },
  };
}

export function makeLive({ open, cancel }) {
  const since = (view, at) => age(view.now() - Date.parse(at));
  let view = null;
  const table = new Table(byId('live-table'), [
    request(open),
    { name: 'Principal', cell: text((r) => r.principal || '–') },
    { name: 'Node', ...lines(where) },
    { name: 'State', ...chip((r) => [words(r.state), runTone(r.state)]) },
    { name: 'Age', class: 'num', cell: text((r) => since(view, r.created_at)) },
    { name: 'First byte', class: 'num', cell: text((r) => waited(r.first_byte_ms)) },
    { name: 'Output', class: 'num', cell: text((r) => (r.bytes_out > 0 ? bytes(r.bytes_out) : '–')) },
    { name: 'Cancel', hidden: true, class: 'act', make: (cell) => {
      const button = el('button', { type: 'button', text: 'Cancel' });
      button.addEventListener('click', () => cancel(cell.run, button));
      cell.append(button);
    }, cell: (cell, r) => {
      cell.run = r;
      setAttr(cell.firstChild, 'aria-label', `Cancel ${model(r)}, run ${r.run_id}`.slice(0, 400));
      cell.firstChild.disabled = !view.connected;
    } },
  ], { key: (r) => r.run_id, empty: byId('live-empty'), refuge: byId('live-title'), few: 50 });
  return (next) => {
    view = next;
    const { runs, total } = view.snapshot.live;
    setText(byId('live-count'), String(total));
    show(byId('live-more'), total > runs.length);
    setText(byId('live-more'), `The ${runs.length} oldest are shown; ${total - runs.length} are younger.`);
    table.render(runs);
  };
}

// tokens is what a run used, as in → out.
function tokens(r) {
  const u = r.usage;
  if (!u || (u.input === null && u.output === null)) return ['–', r.bytes_out > 0 ? bytes(r.bytes_out) : ''];
  return [`${u.input ?? '?'} → ${u.output ?? '?'}`, rate(r)];
}

export function makeEnded({ open }) {
  const table = new Table(byId('ended-table'), [
    request(open),
    { name: 'Principal', cell: text((r) => r.principal || '–') },
    { name: 'Node', ...lines(where) },
    { name: 'Outcome', make: (cell) => cell.append(el('span', { class: 'chip' }), el('span', { class: 'sub clamp' })), cell: (cell, r) => {
      setText(cell.firstChild, r.code);
      setAttr(cell.firstChild, 'data-tone', codeTone(r.code));
      setText(cell.lastChild, r.error);
      show(cell.lastChild, Boolean(r.error));
    } },
    { name: 'Ended', class: 'num', cell: text((r) => clock(r.ended_at)) },
    { name: 'Waited', class: 'num', cell: text((r) => span(r.queue_ms)) },
    { name: 'First byte', class: 'num', cell: text((r) => waited(r.first_byte_ms)) },
    { name: 'Took', class: 'num', cell: text((r) => span(r.duration_ms)) },
    { name: 'Tokens in → out', class: 'num', ...lines(tokens) },
  ], { key: (r) => r.run_id, empty: byId('ended-empty'), refuge: byId('ended-title') });
  return (view) => {
    const { runs, total } = view.snapshot.ended;
    setText(byId('ended-count'), runs.length < total ? `the last ${runs.length}` : String(total));
    table.render(runs);
  };
}
