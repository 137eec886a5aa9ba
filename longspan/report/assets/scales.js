// Scales and ticks of axes, and the widths of words.
"use strict";

const brush = document.createElement("canvas").getContext("2d");
function wordWidth(text, size = 12) {
  brush.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return brush.measureText(text).width;
}

// Where a value lies between two pixels. The domain has room for marks at its ends.
function scaleOf(axis, values, from, to, room = 0.05) {
  const found = values.filter((value) => value !== null && Number.isFinite(value) && (!axis.log || value > 0));
  let low = Math.min(...found), high = Math.max(...found);
  if (!found.length) [low, high] = axis.log ? [1, 10] : [0, 1];
  if (axis.zero && !axis.log) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const bend = axis.log ? Math.log10 : (value) => value;
  let [start, end] = [bend(low), bend(high)];
  if (start === end) [start, end] = axis.log ? [start - 0.3, end + 0.3] : [start - Math.abs(start || 1) * 0.1, end + Math.abs(end || 1) * 0.1];
  const pad = (end - start) * room;
  start -= axis.zero && low === 0 ? 0 : pad;
  end += pad;
  const at = (value) => from + ((bend(value) - start) / (end - start)) * (to - from);
  return { at, start, end, log: Boolean(axis.log), low: axis.log ? 10 ** start : start, high: axis.log ? 10 ** end : end };
}

function roundSteps(low, high, wished) {
  const rough = (high - low) / Math.max(wished, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? 10 * power;
  const digits = Math.max(0, -Math.floor(Math.log10(step)) + (step / power === 2.5 ? 1 : 0));
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9) + 0; n * step <= high + step * 1e-9; n += 1) ticks.push(n * step + 0);
  return ticks.map((value) => [value, value.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 9) })]);
}

function logSteps(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of high / low < 100 ? [1, 2, 5] : [1]) ticks.push(step * 10 ** power);
  }
  return ticks.map((value) => [value, value.toLocaleString("en", { maximumSignificantDigits: 4 })]);
}

// The ticks that lie on the axis, every second or third where they would touch.
function ticksOf(axis, scale, length, across) {
  const wished = across ? length / 90 : length / 48;
  const all = axis.ticks ?? (scale.log ? logSteps(scale.low, scale.high) : roundSteps(scale.low, scale.high, wished));
  const inside = all.filter(([value]) => value >= scale.low * (scale.log ? 0.999 : 1) - 1e-9 && value <= scale.high * (scale.log ? 1.001 : 1) + 1e-9);
  for (let every = 1; every <= inside.length; every += 1) {
    const kept = inside.filter((_, index) => index % every === 0);
    const touches = kept.some(([value, text], index) => {
      if (!index) return false;
      const [before, word] = kept[index - 1];
      const apart = Math.abs(scale.at(value) - scale.at(before));
      return apart < (across ? (wordWidth(text) + wordWidth(word)) / 2 + 10 : 16);
    });
    if (!touches) return kept;
  }
  return inside.slice(0, 1);
}

// Words in lines that are no wider than `room`.
function wrapped(text, room, size = 12) {
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && wordWidth(longer, size) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
