// How numbers and times look.

const none = '–';

// span is a duration in milliseconds as people read it.
export function span(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return none;
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return two(Math.floor(s / 60), 'min', Math.floor(s) % 60, 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor(s / 60) % 60, 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor(s / 3600) % 24, 'h');
}

const two = (a, unitA, b, unitB) => `${a} ${unitA}${b > 0 ? ` ${b} ${unitB}` : ''}`;

// age is span in whole seconds, for what counts up.
export const age = (ms) => span(ms === null || !Number.isFinite(ms) ? ms : Math.max(0, Math.floor(ms / 1000) * 1000)).replace('0 ms', '0 s').replace('.0 s', ' s');

const pad = (n) => String(n).padStart(2, '0');

// waited is a time to a first byte: 0 = there was none.
export const waited = (ms) => (ms > 0 ? span(ms) : none);

export function bytes(n) {
  if (n < 1000) return `${n} B`;
  if (n < 1e6) return `${(n / 1e3).toFixed(1)} kB`;
  if (n < 1e9) return `${(n / 1e6).toFixed(1)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}

// clock is the time of day here, with seconds.
export function clock(at) {
  const d = new Date(at);
  return Number.isNaN(d.getTime()) ? none : `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

// rate is an ended run's output tokens per second of its answer, '' when it isn't known.
export function rate(run) {
  const tokens = run.usage?.output;
  const ms = run.duration_ms - run.first_byte_ms;
  if (!tokens || !(run.first_byte_ms > 0) || ms < 1) return '';
  const perSecond = (tokens * 1000) / ms;
  return `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)} tokens/s`;
}

export const plural = (n, one, many = one + 's') => `${n} ${n === 1 ? one : many}`;
