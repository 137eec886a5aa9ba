// Where the names of points go: greedy, the smallest point first, each where it covers least.
"use strict";

const AROUND = [[1, 0], [-1, 0], [0, -1], [0, 1], [0.8, -0.8], [-0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]];
const shared = (a, b) =>
  Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));

// points: [{x, y, radius, width}], frame: [left, top, right, bottom] -> [{x, y, far}] centres of the labels
function placeLabels(points, frame, height = 15) {
  const taken = points.map(({ x, y, radius }) => [x - radius, y - radius, x + radius, y + radius]);
  const places = new Array(points.length);
  const order = points.map((_, index) => index).sort((a, b) => points[a].radius - points[b].radius);
  for (const index of order) {
    const { x, y, radius, width } = points[index];
    let best = null;
    for (const distance of [3, 9, 18, 30, 46]) {
      for (const [across, down] of AROUND) {
        const at = [x + across * (radius + distance + width / 2), y + down * (radius + distance + height / 2)];
        const box = [at[0] - width / 2, at[1] - height / 2, at[0] + width / 2, at[1] + height / 2];
        const outside = [frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3]];
        const cost = taken.reduce((sum, other) => sum + shared(box, other), distance)
          + 1000 * outside.reduce((sum, side) => sum + Math.max(0, side), 0);
        if (!best || cost < best.cost) best = { cost, box, x: at[0], y: at[1], far: distance > 9 };
      }
    }
    places[index] = best;
    taken.push(best.box);
  }
  return places;
}
