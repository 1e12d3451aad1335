// The page as a whole: which of its states it is in, what is asked for when, and when it is drawn.
//
//   loading → live ⇄ lost        the stream broke; it tries again by itself
//           ↘ signin             the Edge wants a key, or takes the one that it had no longer
//   live ⇄ paused                by the button; and while the tab is hidden, when nobody is asked for anything
//
// One event stream says that something changed; then a snapshot is asked for (refresh.js) and drawn.

import { Refused, getJSON, hasKey, setKey } from './api.js';
import { RunDialog, makeCancel } from './dialogs.js';
import { byId, setText, show } from './dom.js';
import { Events } from './events.js';
import { Feed } from './feed.js';
import { clock } from './format.js';
import { renderGlance } from './glance.js';
import { renderNodes } from './nodes.js';
import { makeQueue } from './queue.js';
import { Refresh } from './refresh.js';
import { makeEnded, makeLive } from './runs.js';
import { makeSlots } from './slots.js';
import { makeWhy } from './why.js';

const frame = 500; // ms between two drawings, whatever comes
const tick = 1000; // ages count up
const repair = 1000; // before a connection that gave no snapshot is made anew

// What is shown. now() is the Edge's clock; it stands still while nothing comes, as all that is shown does.
const view = {
  phase: 'loading', snapshot: null, connected: false,
  taken: 0, // performance.now() when the snapshot came
  frozen: null, // performance.now() when the connection broke
  now: () => Date.parse(view.snapshot.at) + (view.frozen ?? performance.now()) - view.taken,
};
const firstVersion = { seen: '' };
let drawing = 0;
let generation = 0; // of the times that the page was started; what is of an earlier one is dropped

const events = new Events();
const runDialog = new RunDialog();
const cancel = makeCancel(say);
const open = (run, opener) => runDialog.open(run.run_id, opener);
const parts = [renderGlance, renderNodes, makeQueue(), makeLive({ open, cancel }), makeEnded({ open }), makeSlots(), makeWhy()];

const feed = new Feed({
  open() {
    enter('live');
    refresh.start();
  },
  event(e) {
    events.add(e);
    refresh.want();
    draw();
  },
  lost(error, ms) { enter('lost', { error, ms }); },
  denied,
});

const refresh = new Refresh(async () => {
  const mine = generation;
  try {
    const next = await getJSON('snapshot');
    if (mine !== generation) return;
    Object.assign(view, { snapshot: next, taken: performance.now() });
    firstVersion.seen ||= next.version;
    await runDialog.refresh();
    draw();
  } catch (error) {
    if (mine !== generation) return;
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) denied(error);
    else if (view.phase === 'live') reconnect(error);
  }
});

let saidUntil = 0;

// say tells what came of what was done, for a while.
function say(text) {
  setText(byId('said'), text);
  clearTimeout(saidUntil);
  saidUntil = setTimeout(() => setText(byId('said'), ''), 20_000);
}

// reconnect takes a snapshot that didn't come for a connection that is broken, though the stream hasn't noticed.
function reconnect(error) {
  stop();
  enter('lost', { error, ms: repair });
  start(repair);
}

function start(ms = 0) {
  generation++;
  feed.start(ms);
}

// resume starts what was stopped; until it is connected what is shown is what was there.
function resume() {
  enter('loading');
  start();
}

function stop() {
  generation++;
  feed.stop();
  refresh.stop();
}

function denied(error) {
  stop();
  if (error.status === 403) {
    enter('refused', { error });
    return;
  }
  const had = hasKey();
  const seen = view.snapshot !== null;
  setKey('');
  view.snapshot = null;
  enter('signin', { error: had ? (seen ? 'The Edge takes this key no longer.' : 'The Edge does not know this key.') : '' });
}

// enter goes to a state and shows what belongs to it.
function enter(phase, more = {}) {
  if (phase !== 'live') refresh.stop();
  view.phase = phase;
  view.connected = phase === 'live';
  view.frozen = phase === 'live' ? null : view.frozen ?? performance.now();
  const content = view.snapshot !== null && phase !== 'signin' && phase !== 'refused';
  byId('link').dataset.phase = phase;
  setText(byId('link-text'), { loading: 'Connecting…', live: 'Live', lost: 'Connection lost', paused: 'Paused', signin: 'Signed out', refused: 'Refused' }[phase]);
  document.title = phase === 'live' ? 'IOP Edge' : `${byId('link-text').textContent} – IOP Edge`;
  show(byId('signin'), phase === 'signin');
  show(byId('loading'), !content && (phase === 'loading' || phase === 'live'));
  show(byId('content'), content);
  show(byId('nav'), content);
  show(byId('pause'), content && (phase === 'live' || phase === 'paused'));
  byId('pause').setAttribute('aria-pressed', String(phase === 'paused'));
  byId('content').dataset.stale = String(phase === 'lost' || phase === 'paused');
  if (phase === 'signin') {
    for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close();
    setText(byId('signin-error'), more.error);
    byId('key').focus();
  }
  banner(phase, more);
  draw();
}

let countdown = 0;

function banner(phase, { error, ms }) {
  clearInterval(countdown);
  show(byId('banner'), phase === 'lost' || phase === 'paused' || phase === 'refused');
  show(byId('retry'), phase === 'lost');
  byId('banner').dataset.tone = phase === 'paused' ? 'wait' : 'bad';
  setText(byId('banner-count'), '');
  const seen = view.snapshot ? `What you see is from ${clock(Date.now() - (performance.now() - view.taken))}.` : 'Nothing was seen yet.';
  if (phase === 'paused') {
    setText(byId('banner-title'), 'Paused.');
    setText(byId('banner-text'), seen);
  } else if (phase === 'refused') {
    setText(byId('banner-title'), 'The Edge refuses this page:');
    setText(byId('banner-text'), error.message);
  } else if (phase === 'lost') {
    setText(byId('banner-title'), error instanceof Refused ? `The Edge refuses: ${error.message}.` : 'Connection to the Edge lost.');
    setText(byId('banner-text'), seen);
    const until = performance.now() + ms;
    const count = () => setText(byId('banner-count'), `Trying again in ${Math.max(0, Math.ceil((until - performance.now()) / 1000))} s.`);
    count();
    countdown = setInterval(count, tick);
  }
}

// draw draws soon, and not more often than each frame.
function draw() {
  if (!drawing) drawing = setTimeout(redraw, frame);
}

function redraw() {
  clearTimeout(drawing);
  drawing = 0;
  if (document.hidden || view.snapshot === null || view.phase === 'signin' || view.phase === 'refused') return;
  if (byId('content').hidden) enter(view.phase); // the first snapshot
  const { version } = view.snapshot;
  setText(byId('version'), version === firstVersion.seen ? version : `${version}; this page is of ${firstVersion.seen}, reload it`);
  for (const render of parts) render(view);
  events.render();
}

setInterval(() => { if (view.phase === 'live') draw(); }, tick);

byId('retry').addEventListener('click', () => feed.now());
byId('pause').addEventListener('click', () => {
  if (view.phase === 'paused') resume();
  else {
    stop();
    enter('paused');
  }
});
byId('signin-form').addEventListener('submit', (event) => {
  event.preventDefault();
  setKey(byId('key').value.trim());
  byId('key').value = '';
  resume();
});
byId('explain-form').addEventListener('submit', (event) => {
  event.preventDefault();
  runDialog.open(byId('explain-run').value, event.submitter ?? byId('explain-run'));
});
document.addEventListener('visibilitychange', () => {
  if (view.phase === 'signin' || view.phase === 'refused' || view.phase === 'paused') return;
  if (document.hidden) stop();
  else resume();
});

enter('loading');
if (!document.hidden) start();
