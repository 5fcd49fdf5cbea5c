"use strict";
// The page of `deltabeast watch`: live, from /events, or of a recorded game, whose messages stand in #recording.
// Text is only ever set as textContent, and styles by CSSOM: the Content-Security-Policy allows nothing inline.

const MOST_ACTIONS = 18;
const HISTORY = 256;
const $ = (id) => document.getElementById(id);
const recorded = $("recording");
let state = null;
let views = [];
let shown = "";  // whose views these are
let colours = {};

// --- small helpers -----------------------------------------------------------------------------------------

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const minus = (text) => text.replace(/-/g, "−");
const whole = (number) => minus(Number(number).toLocaleString("en-US"));
const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;

function short(number, digits = 3) {
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return minus(number.toExponential(1));
  return whole(Number(number.toPrecision(digits)));
}

// Of hundredths of a percent; below 10% with one more digit.
function percent(share) {
  const tenths = Math.round(share / 10), text = Math.abs(tenths) < 100 ? (tenths / 10).toFixed(1) : String(Math.round(share / 100));
  return tenths ? minus((share > 0 ? "+" : "") + text) + "%" : "0%";
}

const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "rule", "faint", "card", "accent", "accent-soft", "policy", "heat-0", "heat-1"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
  colours.layers = [0, 1, 2, 3, 4, 5].map((n) => style.getPropertyValue("--l" + n).trim());
  const ends = [colours["heat-0"], colours["heat-1"]].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  colours.heat = Array.from({ length: 33 }, (_, n) => {
    const mix = ends[0].map((low, i) => Math.round(low + ((ends[1][i] - low) * n) / 32));
    return `rgb(${mix.join(",")})`;
  });
}

// A canvas in CSS pixels, sharp on every screen.
function begin(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width || !height) return null;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.font = "11px " + getComputedStyle(document.body).fontFamily;
  return { draw, width, height };
}

// --- what an agent sees ------------------------------------------------------------------------------------

function showSeen(box, seen, label, largest) {
  let element = box.firstElementChild;
  const tag = seen.png ? "IMG" : "CANVAS";
  if (!element || element.tagName !== tag) {
    element = document.createElement(tag);
    if (tag === "IMG") element.decoding = "sync";
    else element.setAttribute("role", "img");
    box.replaceChildren(element);
  }
  if (seen.png) {
    [element.width, element.height] = seen.size;
    element.src = "data:image/png;base64," + seen.png;
    element.alt = label;
    return;
  }
  element.setAttribute("aria-label", label + ": " + seen.numbers.map((x) => short(x)).join(", "));
  const width = Math.max(90, box.clientWidth || 240), height = Math.round(0.62 * width), ratio = 2;
  [element.width, element.height] = [width * ratio, height * ratio];
  const draw = element.getContext("2d");
  draw.scale(ratio, ratio);
  const n = seen.numbers.length, pitch = (width - 20) / n, size = Math.min(pitch * 0.72, 40);
  const hasValues = pitch >= 36, top = hasValues ? 18 : 8, bottom = height - 18;
  const zero = largest.signed ? (top + bottom) / 2 : bottom, reach = zero - top;
  draw.textAlign = "center";
  draw.font = "10px " + getComputedStyle(document.body).fontFamily;
  seen.numbers.forEach((value, i) => {
    const middle = 10 + pitch * (i + 0.5), x = middle - size / 2, share = largest[i] ? (value ?? 0) / largest[i] : 0;
    draw.fillStyle = colours.rule;
    draw.fillRect(x, top, size, bottom - top);
    draw.fillStyle = colours.policy;
    draw.fillRect(x, Math.min(zero, zero - share * reach), size, Math.abs(share * reach));
    draw.fillStyle = colours.ink;
    if (hasValues) draw.fillText(short(value, 2), middle, top - 5);
    draw.fillStyle = colours.muted;
    if (pitch >= 12 || i % 5 === 0) draw.fillText(String(i), middle, height - 5);
  });
  draw.fillStyle = colours.muted;
  draw.fillRect(8, zero, width - 16, 1);
}

// --- strips over time, the present at the right end --------------------------------------------------------

const LEFT = 48, RIGHT = 10;
const spanOf = (width) => Math.max(50, Math.min(150, 10 * Math.floor((width - LEFT - RIGHT) / 50)));  // in steps
const ticksOf = (span) => Array.from({ length: 9 }, (_, n) => (n + 1) * (span < 100 ? 10 : 50)).filter((ago) => ago < span);

class Strip {
  constructor(parent, title, unit, className = "") {
    this.root = make("div", "strip " + className);
    const head = make("h3");
    this.now = make("span", "now");
    const [before, after] = unit.split("▭"), hint = make("span", "hint", before);  // a scale of colours stands there
    if (after) hint.append(make("span", "scale"), after);
    head.append(make("span", "", title), hint, this.now);
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.title = title;
    this.root.append(head, this.canvas);
    parent.append(this.root);
  }

  // Call paint with the axes; values are [text, colour] of the present.
  draw(view, values, paint) {
    this.now.replaceChildren(...values.map(([text, colour]) => {
      const span = make("span", "", text);
      if (colour) span.style.color = colour;
      return span;
    }));
    this.canvas.setAttribute("aria-label", `${this.title} over the last steps; now ${values.map(([text]) => text).join(", ")}`);
    const area = begin(this.canvas);
    if (!area) return;
    const { draw, width, height } = area;
    const span = spanOf(width);
    const pitch = (width - LEFT - RIGHT) / span, now = view.now;
    const x = (step) => width - RIGHT - (now - step + 0.5) * pitch;
    const steps = view.records.filter((record) => record.step > now - span && record.step <= now);
    for (const ago of ticksOf(span)) this.line(draw, x(now - ago), height, colours.rule, []);
    paint({ draw, width, height, x, pitch, steps, first: now - span + 1 });
    this.marks(view, area, x, steps);
  }

  marks(view, { draw, height }, x, steps) {
    for (const record of steps) {
      if (record.begins && record.step > 0) this.line(draw, x(record.step) - 1, height, colours.muted, [2, 3]);
      if (record.notes.length) this.line(draw, x(record.step) - 1, height, colours.accent, []);
    }
  }

  line(draw, x, height, colour, dash) {
    draw.save();
    draw.strokeStyle = colour;
    draw.setLineDash(dash);
    draw.beginPath();
    draw.moveTo(Math.round(x) + 0.5, 0);
    draw.lineTo(Math.round(x) + 0.5, height);
    draw.stroke();
    draw.restore();
  }
}

// Below all strips: how long ago.
function drawTime(canvas) {
  const area = begin(canvas);
  if (!area) return;
  const { draw, width } = area, span = spanOf(width), pitch = (width - LEFT - RIGHT) / span;
  draw.fillStyle = colours.muted;
  draw.textAlign = "left";
  draw.fillText(`last ${span} steps`, LEFT, 11);
  draw.textAlign = "right";
  draw.fillText("now", width - RIGHT, 11);
  draw.textAlign = "center";
  for (const ago of ticksOf(span)) {
    const x = width - RIGHT - (ago + 0.5) * pitch;
    if (x > LEFT + 95 && x < width - RIGHT - 40) draw.fillText("−" + ago, x, 11);
  }
  canvas.setAttribute("aria-label", `The strips show the last ${span} steps.`);
}

function axis(low, high) {
  low = Math.min(low, 0);
  high = Math.max(high, 0);
  if (high - low < 1e-6) high = low + 1;
  const pad = 0.06 * (high - low);
  return { low: low ? low - pad : 0, high: high ? high + pad : 0, bottom: low, top: high };
}

function drawAxis(area, scale, y) {
  const { draw, width } = area;
  draw.textAlign = "right";
  draw.textBaseline = "middle";
  for (const tick of new Set([scale.bottom, 0, scale.top])) {
    if (tick && Math.abs(y(tick) - y(0)) < 11) continue;
    draw.strokeStyle = tick === 0 ? colours.muted : colours.rule;
    draw.lineWidth = 1;
    draw.beginPath();
    draw.moveTo(LEFT, Math.round(y(tick)) - 0.5);
    draw.lineTo(width - RIGHT, Math.round(y(tick)) - 0.5);
    draw.stroke();
    draw.fillStyle = colours.muted;
    draw.fillText(short(tick, 2), LEFT - 6, Math.max(6, Math.min(area.height - 6, y(tick))));
  }
}

// Curves: series of { of: record -> number or null, colour }.
function drawCurves(area, series) {
  const { draw, height, x, steps } = area;
  const all = steps.flatMap((record) => series.map(({ of }) => of(record))).filter((value) => value !== null && value !== undefined);
  const scale = axis(Math.min(...all, 0), Math.max(...all, 0));
  const y = (value) => 5 + (1 - (value - scale.low) / (scale.high - scale.low)) * (height - 10);
  drawAxis(area, scale, y);
  for (const { of, colour } of series) {
    draw.strokeStyle = colour;
    draw.lineWidth = 1.8;
    draw.lineJoin = "round";
    draw.beginPath();
    let pen = false, last = null;
    for (const record of steps) {
      const value = of(record);
      if (value === null || value === undefined) { pen = false; continue; }
      if (pen && record.step === last + 1) draw.lineTo(x(record.step), y(value));
      else draw.moveTo(x(record.step), y(value));
      [pen, last] = [true, record.step];
    }
    draw.stroke();
  }
}

function drawHeat(area, layers) {
  const { draw, height, x, pitch, steps } = area;
  const gap = 4, rowsOf = (record) => layers.map((n) => record.layers?.[n]?.strength ?? []);
  const counts = steps.length ? rowsOf(steps.at(-1)).map((row) => row.length) : [];
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (!total) return;
  const row = (height - gap * (counts.length - 1)) / total;
  let top = 0;
  counts.forEach((heads, i) => {
    draw.fillStyle = colours.layers[layers[i] % 6];
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    draw.fillText("layer " + (layers[i] + 1), LEFT - 4, top + (heads * row) / 2);
    for (const record of steps) {
      rowsOf(record)[i].forEach((value, head) => {
        draw.fillStyle = colours.heat[Math.round(32 * Math.max(0, Math.min(1, value ?? 0)))];
        draw.fillRect(x(record.step) - pitch / 2, top + head * row, pitch + 0.5, Math.max(1, row - 1));
      });
    }
    top += heads * row + gap;
  });
}

// The shares of the present reading, at the steps that wrote them.
function drawShares(area, reading, now) {
  const { draw, height, x, pitch, first } = area;
  const all = reading.shares.slice(Math.max(0, first - reading.first));
  const scale = axis(Math.min(...all, 0) / 100, Math.max(...all, 100) / 100);
  const y = (value) => 17 + (1 - (value - scale.low) / (scale.high - scale.low)) * (height - 22);
  drawAxis(area, scale, y);
  const labels = [];
  reading.shares.forEach((share, i) => {
    const step = reading.first + i;
    if (step < first) return;
    const rank = reading.sources.indexOf(step);
    draw.fillStyle = rank >= 0 ? colours.accent : step === now ? colours.muted : colours["accent-soft"];
    const zero = y(0), end = y(share / 100), wide = Math.max(1.5, pitch - 1);
    draw.fillRect(x(step) - wide / 2, Math.min(zero, end), wide, Math.abs(end - zero));
    if (rank >= 0) labels.push({ text: String(rank + 1), at: x(step), top: Math.min(zero, end) });
  });
  drawRanks(draw, labels, area.width - RIGHT);
}

// In a row above the bars, each at least so far from the next, with a line to its bar.
function drawRanks(draw, labels, right) {
  const APART = 11;
  let next = right + APART / 2;
  draw.textAlign = "center";
  draw.textBaseline = "alphabetic";
  draw.font = "bold 11px " + getComputedStyle(document.body).fontFamily;
  draw.fillStyle = draw.strokeStyle = colours.accent;
  draw.lineWidth = 1;
  for (const { text, at, top } of labels.reverse()) {
    next = Math.min(at, next - APART);
    draw.fillText(text, next, 9);
    draw.beginPath();
    draw.moveTo(next, 11.5);
    draw.lineTo(at, Math.max(13, top));
    draw.stroke();
  }
}

// --- one agent ---------------------------------------------------------------------------------------------

class View {
  constructor(n, root) {
    this.n = n;
    this.records = [];
    this.byStep = new Map();
    this.largest = [];
    this.root = $("seat").content.cloneNode(true).firstElementChild;
    this.find = (selector) => this.root.querySelector(selector);
    for (const button of this.root.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.command(button.dataset.do));
    }
    this.checkpoints = this.find(".surgery select");
    this.checkpoints.addEventListener("change", () => {
      this.chosen = this.checkpoints.value;
      this.describe(this.about);
    });
    this.sources = [1, 2, 3].map((rank) => {
      const item = make("li", "empty"), box = make("div", "screen"), line = make("p"), share = make("b", "", "0%"), ago = make("span", "", "0 steps ago");
      box.dataset.rank = rank;
      line.append(share, ago);
      item.append(box, line);
      this.find(".sources").append(item);
      return { item, box, share, ago };
    });
    this.strips = {};
    this.reasons = {};
    root.append(this.root);
    new ResizeObserver(() => this.render()).observe(this.root);
  }

  command(word) {
    const given = { do: word, seat: this.n };
    if (word === "checkpoint") {
      given.step = Number(this.checkpoints.value);
      this.chosen = null;
    }
    send(given);
  }

  clear() {
    this.records = [];
    this.byStep.clear();
    this.largest = [];
  }

  add(record) {
    if (this.byStep.has(record.step)) return;
    if (this.records.length && record.step < this.records.at(-1).step) this.clear();
    this.records.push(record);
    this.byStep.set(record.step, record);
    (record.seen.numbers ?? []).forEach((value, i) => {
      this.largest[i] = Math.max(this.largest[i] ?? 0, Math.abs(value ?? 0));
      this.largest.signed ||= value < 0;
    });
    while (!recorded && this.records.length > HISTORY) this.byStep.delete(this.records.shift().step);
    this.now = record.step;
  }

  describe(about) {
    this.about = about;
    const name = `${about.core}, trained for ${whole(about.step)} steps`;
    this.find("h2").textContent = state.seats.length > 1 ? `${about.title}: ${about.core}` : name;
    this.root.setAttribute("aria-label", state.seats.length > 1 ? `${name}: ${about.run}` : name);
    const parts = state.seats.length > 1 ? [about.run, `trained for ${whole(about.step)} steps`, about.about] : [about.run, about.about];
    if (about.waiting) parts.push(`its checkpoint at ${whole(about.waiting)} plays from the next episode on`);
    this.find(".about").textContent = parts.join(" · ");
    const none = about.has_memory ? "" : `${about.core} has no memory`;
    for (const word of ["wipe", "undo"]) this.forbid(word, none);
    this.find('[data-do="transplant"]').hidden = state.seats.length < 2;
    const differ = about.can_transplant ? "" : "the two memories differ: it takes two runs of one core and sizes";
    this.forbid("transplant", state.seats.length < 2 ? "" : none || differ);
    this.find(".with-memory").hidden = !about.has_memory;
    this.describeCheckpoints(about);
  }

  // The menu shows the checkpoint that plays, or one that the viewer chose since.
  describeCheckpoints({ step, checkpoints }) {
    const isSaved = checkpoints.includes(step), listed = isSaved ? checkpoints : [...checkpoints, step].sort((a, b) => a - b);
    const names = listed.map((each) => whole(each) + (checkpoints.includes(each) ? "" : " (no longer saved)"));
    if (this.listed !== names.join()) {
      this.listed = names.join();
      this.checkpoints.replaceChildren(...listed.map((each, n) => new Option(names[n], each)));
    }
    const chosen = listed.includes(Number(this.chosen ?? NaN)) ? this.chosen : String(step);
    if (this.checkpoints.value !== chosen) this.checkpoints.value = chosen;
    this.forbid("checkpoint", checkpoints.includes(Number(chosen)) ? "" : `${whole(chosen)} is no longer saved`);
  }

  // Disable a button for a reason, or enable it.
  forbid(word, why) {
    const button = this.find(`[data-do="${word}"]`);
    button.disabled = Boolean(why);
    button.title = why;
    this.reasons[word] = why;
    this.find(".why").textContent = [...new Set(Object.values(this.reasons).filter(Boolean))].join("; ");
  }

  strip(name, ...about) {
    this.strips[name] ??= new Strip(this.find(".strips"), ...about);
    return this.strips[name];
  }

  render() {
    const record = this.byStep.get(this.now);
    if (!record || !this.about) return;
    showSeen(this.find(".game .screen"), record.seen, `What the agent sees at step ${record.step}`, this.largest);
    this.find(".game figcaption").hidden = !record.seen.numbers;
    this.find('[data-of="score"]').textContent = short(record.score, 6);
    this.find('[data-of="value"]').textContent = short(record.value);
    this.find('[data-of="reward"]').textContent = short(record.reward);
    this.find('[data-of="step"]').textContent = whole(record.step);
    this.find('[data-of="episode"]').textContent = `in episode ${whole(record.episode + 1)}`;
    this.find('[data-of="into"]').textContent = whole(record.into);
    this.renderPolicy(record);
    this.renderReading(record);
    this.renderStrips(record);
  }

  renderPolicy(record) {
    const names = this.about.actions;
    let shown = names.map((_, n) => n);
    if (shown.length > MOST_ACTIONS) {
      shown = shown.sort((a, b) => record.policy[b] - record.policy[a]).slice(0, MOST_ACTIONS).sort((a, b) => a - b);
    }
    const body = this.find(".policy tbody");
    while (body.rows.length < shown.length) {
      const row = body.insertRow(), name = make("th"), cell = make("td"), rail = make("div", "rail");
      name.scope = "row";
      rail.append(make("span", "fill"), make("span", "mark"));
      cell.append(rail);
      row.append(name, cell, make("td", "n"));
    }
    shown.forEach((n, i) => {
      const row = body.rows[i], [fill, mark] = row.cells[1].firstElementChild.children;
      row.className = n === record.action ? "chosen" : "";
      row.cells[0].textContent = names[n].toLowerCase();
      row.cells[2].textContent = (record.policy[n] ?? 0).toFixed(2);
      fill.style.width = 100 * (record.policy[n] ?? 0) + "%";
      mark.hidden = !record.wiped;
      if (record.wiped) mark.style.left = 100 * (record.wiped[n] ?? 0) + "%";
    });
  }

  renderReading(record) {
    const reading = record.reading;
    this.find(".reads").hidden = !this.records.some((each) => each.reading);
    this.renderMissing(record);
    const count = reading && plural(reading.age ?? reading.shares.length, "step");
    this.find(".age").textContent = reading ? `median age ${reading.age === null ? "over " : ""}${count}` : "";
    this.sources.forEach(({ item, box, share, ago }, i) => {
      const step = reading?.sources[i], past = this.byStep.get(step), n = record.step - step;
      item.classList.toggle("empty", !past);
      if (!past) {  // what is invisible takes the same room
        showSeen(box, record.seen, "nothing yet", this.largest);
        return;
      }
      const portion = percent(reading.shares[step - reading.first]), when = `${plural(n, "step")} ago`;
      share.textContent = portion;
      ago.textContent = when;
      showSeen(box, past.seen, `${when}: share ${portion}`, this.largest);
    });
  }

  renderMissing(record) {
    const isOpaque = record.layers?.length === 1 && record.layers[0].norm && !record.layers[0].change;
    const { core, has_memory } = this.about;
    const why = !has_memory ? `${core} has no memory: it acts on what it sees in this step alone.`
      : isOpaque ? `What ${core} reads is not linear in what it wrote, and cannot be divided among past steps.` : "";
    this.find(".missing").hidden = !why;
    this.find(".missing").textContent = why;
  }

  renderStrips(record) {
    const layers = (record.layers ?? []).map((_, n) => n);
    const reading = record.reading;
    if (reading || this.strips.shares) {
      const strip = this.strip("shares", "share of the reading, by the step that wrote it", "%", "tall");
      const first = record.step - spanOf(strip.canvas.clientWidth) + 1;
      const left = reading ? reading.shares.slice(0, Math.max(0, first - reading.first)) : [];
      const older = left.reduce((sum, share) => sum + share, reading?.older ?? 0);
      const values = reading ? [`older ${percent(older)}`, `this step ${percent(reading.shares.at(-1))}`] : [];
      strip.draw(this, values.map((text) => [text]), (area) => {
        if (reading) drawShares(area, reading, record.step);
      });
    }
    const written = layers.filter((n) => record.layers[n].strength);
    if (written.length) {
      const now = written.map((n) => [short(mean(record.layers[n].strength), 2), colours.layers[n % 6]]);
      this.strip("heat", "write strength", "0 keeps ▭ 1 replaces; one row a head", "heat").draw(this, now, (area) => drawHeat(area, written));
    }
    const normed = layers.filter((n) => record.layers[n].norm);
    if (normed.length) {
      const of = (n) => (each) => (each.layers?.[n]?.norm ? mean(each.layers[n].norm) : null);
      const unit = record.layers[normed[0]].change ? "of the fast weights, mean of heads" : "of the core's state";
      const now = normed.map((n) => [short(of(n)(record)), colours.layers[n % 6]]);
      this.strip("norm", "norm", unit).draw(this, now, (area) => drawCurves(area, normed.map((n) => ({ of: of(n), colour: colours.layers[n % 6] }))));
    }
    if (record.kl !== undefined) {
      const series = [{ of: (each) => each.kl, colour: colours.accent }];
      this.strip("kl", "what the memory changes", "KL of the policies, nats").draw(this, [[short(record.kl)]], (area) => drawCurves(area, series));
    }
    const series = [{ of: (each) => each.value, colour: colours.ink }];
    this.strip("value", "value", "discounted reward to come").draw(this, [[short(record.value)]], (area) => drawCurves(area, series));
    drawTime(this.find(".time"));
  }
}

// --- messages ----------------------------------------------------------------------------------------------

function receive(message) {
  const who = JSON.stringify([message.state.server, message.state.seats.map(({ title, core, run, actions }) => [title, core, run, actions])]);
  const before = who === shown ? state : null;
  state = message.state;
  if (who !== shown) {
    shown = who;
    $("seats").replaceChildren();
    views = state.seats.map((_, n) => new View(n, $("seats")));
    $("speed").replaceChildren(...state.speeds.map((factor) => new Option(`${factor}×`, factor)));
    if (recorded) $("place").max = message.steps.length - 1;
  }
  if (message.anew) views.forEach((view) => view.clear());
  for (const step of message.steps) step.forEach((record, n) => views[n].add(record));
  const games = [...new Set(state.seats.map((seat) => seat.title))];
  $("title").textContent = games.join(", ");
  document.title = [...["title", "core", "run"].map((name) => [...new Set(state.seats.map((seat) => seat[name]))].join(", ")), "deltabeast watch"].join(" · ");
  $("about").textContent = `seed ${whole(state.seed)}` + (recorded ? ", recorded" : `, ${state.viewers} watching`);
  if (before === null || before.seed !== state.seed) $("seed").value = state.seed;
  if (before !== null && before.said !== state.said) say(state.said);
  showPace();
  views.forEach((view, n) => view.describe(state.seats[n]));
  requestAnimationFrame(render);
}

function render() {
  views.forEach((view) => view.render());
}

function showPace() {
  $("pause").setAttribute("aria-pressed", String(state.paused));
  $("pause").querySelector(".word").textContent = state.paused ? "Play" : "Pause";
  $("speed").value = state.speed;
}

function say(text) {
  $("said").textContent = text;
}

async function send(command) {
  if (recorded) return replayed(command);
  try {
    const answer = await fetch("/command", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(command),
    });
    const content = await answer.json().catch(() => ({ error: answer.statusText }));
    if (content.error) say(content.error);
  } catch {
    say("The server does not answer; start deltabeast watch again.");
  }
}

// --- live --------------------------------------------------------------------------------------------------

const SILENT = "The server does not answer; the page looks for it.";
let source = null;

function connect() {
  if (source || document.hidden) return;
  source = new EventSource("/events");
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onopen = () => say("");
  source.onerror = async () => {
    say(SILENT);
    if (source.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(connect, 3000);
    say(await whyRefused());
  };
}

// An EventSource does not tell what it was answered.
async function whyRefused() {
  const enough = new AbortController();
  try {
    const answer = await fetch("/events", { signal: enough.signal });
    if (answer.ok) return "";
    const text = await answer.text();
    return text.startsWith("{") ? JSON.parse(text).error : text;
  } catch {
    return SILENT;
  } finally {
    enough.abort();
  }
}

// Nobody looks at a hidden page: the game stands still, and costs nothing.
function look() {
  if (document.hidden && source) {
    source.close();
    source = null;
  } else connect();
}

// --- recorded ----------------------------------------------------------------------------------------------

let timer = null;

function showOrigin(message) {
  $("made").hidden = false;
  $("made").querySelector("dl").replaceChildren(...message.made.flatMap(([term, what]) => [make("dt", "", term), make("dd", "", what)]));
  if (message.goes_on) $("about").textContent += `; the game goes on after these ${whole(message.steps.length)} steps: more with --steps`;
}

function goTo(place) {
  const all = views[0].records;
  place = Math.max(0, Math.min(all.length - 1, place));
  views.forEach((view) => { view.now = view.records[Math.min(place, view.records.length - 1)].step; });
  $("place").value = place;
  $("placed").textContent = `${whole(place + 1)} of ${whole(all.length)}`;
  const step = views.map((view) => view.byStep.get(view.now).notes).flat();
  say(step.join("; "));
  requestAnimationFrame(render);
  return place < all.length - 1;
}

function replayed(command) {
  if (command.do === "pause") state.paused = command.on;
  if (command.do === "speed") state.speed = command.factor;
  if (command.do === "step") {
    state.paused = true;
    goTo(Number($("place").value) + 1);
  }
  if (command.do === "pause" && !state.paused && Number($("place").value) >= views[0].records.length - 1) goTo(0);
  clearInterval(timer);
  if (!state.paused) {
    timer = setInterval(() => {
      if (!goTo(Number($("place").value) + 1)) replayed({ do: "pause", on: true });
    }, 1000 / (state.speed * state.steps_per_second));
  }
  showPace();
}

// --- begin -------------------------------------------------------------------------------------------------

function faster(by) {
  const n = state.speeds.indexOf(state.speed) + by;
  if (state.speeds[n]) send({ do: "speed", factor: state.speeds[n] });
}

function restart() {
  const seed = $("seed").value, number = Number(seed);
  if (seed.trim() && Number.isInteger(number) && number >= 0 && number < 2 ** 31) send({ do: "restart", seed: number });
  else say("A seed is a whole number from 0 to 2,147,483,647; give one, then begin anew.");
}

const KEYS = {
  " ": () => send({ do: "pause", on: !state.paused }),
  ArrowRight: () => send({ do: "step" }),
  ".": () => send({ do: "step" }),
  "+": () => faster(1),
  "=": () => faster(1),
  "-": () => faster(-1),
  w: () => focused().command("wipe"),
  u: () => focused().command("undo"),
  r: restart,
};

function focused() {
  return views.find((view) => view.root.contains(document.activeElement)) ?? views[0];
}

function onKey(event) {
  const target = event.target;
  const isMenu = target.matches("select"), isSlider = target.matches("[type=range]");
  const takesKeys = (target.matches("input") && !isSlider) || (target.matches("button, summary, select") && event.key === " ") ||
    ((isMenu || isSlider) && event.key.startsWith("Arrow"));
  if (takesKeys || event.ctrlKey || event.metaKey || event.altKey || !state || !KEYS[event.key]) return;
  if (recorded && "wur".includes(event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

$("pause").addEventListener("click", () => state && send({ do: "pause", on: !state.paused }));
$("step").addEventListener("click", () => send({ do: "step" }));
$("speed").addEventListener("change", () => send({ do: "speed", factor: Number($("speed").value) }));
$("restart").addEventListener("click", restart);
$("seed").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  restart();
  $("seed").blur();  // keys are the game's again
});
$("place").addEventListener("input", () => {
  replayed({ do: "pause", on: true });
  goTo(Number($("place").value));
});
document.addEventListener("keydown", onKey);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  render();
});
readColours();
if (recorded) {
  document.documentElement.classList.add("is-recorded");
  for (const element of document.querySelectorAll(".live")) element.hidden = true;
  for (const element of $("seat").content.querySelectorAll(".live")) element.hidden = true;
  document.querySelector(".recorded").hidden = false;
  const message = JSON.parse(recorded.textContent);
  receive(message);
  showOrigin(message);
  goTo(0);
  replayed({ do: "pause", on: matchMedia("(prefers-reduced-motion: reduce)").matches });
} else {
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", () => { source?.close(); source = null; });
  addEventListener("pageshow", connect);
  connect();
}
