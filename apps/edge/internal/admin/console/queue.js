// Who waits on which route, and how long.

import { byId, setText } from './dom.js';
import { span } from './format.js';
import { Table, text, lines } from './table.js';

// limit is what a route allows; 0 = the API doesn't say.
const limit = (n, show) => (n > 0 ? show(n) : '–');

export function makeQueue() {
  const table = new Table(byId('queue-table'), [
    { name: 'Route', ...lines((r) => (r.route ? [r.route, ''] : [`runs on ${r.adapter}`, 'without a route'])) },
    { name: 'Running', class: 'num', cell: text((r) => String(r.running)) },
    { name: 'Waiting', class: 'num', cell: text((r) => String(r.waiting)) },
    { name: 'Longest wait', class: 'num', cell: text((r) => (r.waiting > 0 ? span(r.longest_ms) : '–')) },
    { name: 'May wait', class: 'num', cell: text((r) => limit(r.queue_depth, String)) },
    { name: 'At most for', class: 'num', ...lines((r) => [limit(r.queue_wait_ms, span), r.fail_fast && 'only while a node is there']) },
  ], { key: (r) => `${r.route}\n${r.adapter}`, empty: byId('queue-empty'), refuge: byId('queue-title') });
  return (view) => {
    const { queue } = view.snapshot;
    setText(byId('queue-count'), queue.queued === 0 ? 'nobody waits' : `${queue.queued} waiting`);
    table.render(queue.routes);
  };
}
