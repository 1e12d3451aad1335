// Which colour a word of the API has. A colour never says anything that the word beside it doesn't.

const nodeTones = { ready: 'good', registered: 'wait', not_ready: 'bad', draining: 'wait', unresponsive: 'bad', offline: 'bad', disabled: 'off' };
const runTones = { queued: 'wait', running: 'good', detached: 'wait', recovered: 'wait' };
const ownWish = ['cancelled', 'client_gone'];
const eventTones = {
  ready: 'good', run_ended: 'good', adapter_available: 'good', fenced: 'bad', refused: 'bad', not_ready: 'bad', unresponsive: 'bad',
  adapter_unavailable: 'bad', refused_projection: 'bad', store_degraded: 'bad', clock_skew: 'bad', identity_reload_failed: 'bad',
  capacity_drift: 'bad', clone: 'bad', reload_refused: 'bad', run_retried: 'wait', run_queued: 'wait', drained: 'wait', draining: 'wait',
  missed: 'wait',
};

export const words = (name) => String(name).replaceAll('_', ' ');
export const nodeTone = (node) => (node.drained && node.state === 'ready' ? 'wait' : nodeTones[node.state] ?? 'off');
// cardTone is nodeTone, and that of its worst adapter.
export const cardTone = (node) => (nodeTone(node) === 'good' && node.adapters.some((a) => !a.available) ? 'bad' : nodeTone(node));
export const runTone = (state) => runTones[state] ?? 'off';
export const codeTone = (code) => (code === 'ok' ? 'good' : ownWish.includes(code) ? 'off' : 'bad');

export function eventTone(e) {
  if (e.kind === 'run_ended') return codeTone(e.code);
  return eventTones[e.kind] ?? 'off';
}
