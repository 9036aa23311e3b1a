// The match graph and the connectivity matrix of a scene.

// ``places``: (x, y) of each photo in 0 to 1; ``links``: rows of ``pairs``; ``shade(photo)``: its colour.
function drawGraph(canvas, places, pairs, strength, shade, chosen) {
  const { context, width, height } = fitCanvas(canvas), count = places.length / 2, margin = 12;
  const at = (photo) => [margin + places[2 * photo] * (width - 2 * margin), margin + places[2 * photo + 1] * (height - 2 * margin)];
  context.strokeStyle = colour("--soft");
  const faint = Math.min(1, 400 / Math.max(strength.length, 1));
  for (let pair = 0; pair < strength.length; pair++) {
    const [a, b] = [pairs[2 * pair], pairs[2 * pair + 1]], own = a === chosen || b === chosen;
    if (strength[pair] <= 0) continue;
    context.globalAlpha = own ? 1 : faint * Math.min(1, 0.12 * Math.log2(1 + strength[pair] / 8));
    context.lineWidth = own ? 1.5 : 1;
    context.beginPath();
    context.moveTo(...at(a));
    context.lineTo(...at(b));
    context.stroke();
  }
  context.globalAlpha = 1;
  const radius = count > 200 ? 2.5 : count > 60 ? 4 : 6;
  for (let photo = 0; photo < count; photo++) {
    context.fillStyle = shade(photo);
    context.beginPath();
    context.arc(...at(photo), photo === chosen ? radius + 3 : radius, 0, 2 * Math.PI);
    context.fill();
    if (photo !== chosen) continue;
    context.strokeStyle = colour("--ink");
    context.lineWidth = 2;
    context.stroke();
  }
  return (x, y) => {
    let best = -1, least = 12;
    for (let photo = 0; photo < count; photo++) {
      const [u, v] = at(photo), away = Math.hypot(u - x, v - y);
      if (away < least) [best, least] = [photo, away];
    }
    return best;
  };
}

// Cells are darker the more pairs share, by the logarithm; a chosen photo has its row and column framed.
function drawMatrix(canvas, count, pairs, strength, chosen) {
  const { context, width, height } = fitCanvas(canvas), most = Math.log2(1 + strength.reduce((a, b) => Math.max(a, b), 1));
  const cell = Math.min(width, height) / Math.max(count, 1);
  context.fillStyle = colour("--panel");
  context.fillRect(0, 0, cell * count, cell * count);
  context.fillStyle = colour("--accent");
  for (let pair = 0; pair < strength.length; pair++) {
    if (strength[pair] <= 0) continue;
    const [a, b] = [pairs[2 * pair], pairs[2 * pair + 1]];
    context.globalAlpha = 0.1 + (0.9 * Math.log2(1 + strength[pair])) / most;
    context.fillRect(a * cell, b * cell, Math.max(cell, 1), Math.max(cell, 1));
    context.fillRect(b * cell, a * cell, Math.max(cell, 1), Math.max(cell, 1));
  }
  context.globalAlpha = 1;
  if (chosen >= 0) {
    context.strokeStyle = colour("--bad");
    context.lineWidth = 1.5;
    context.strokeRect(chosen * cell, 0, Math.max(cell, 2), cell * count);
    context.strokeRect(0, chosen * cell, cell * count, Math.max(cell, 2));
  }
  return (x, y) => {
    const places = [Math.floor(x / cell), Math.floor(y / cell)];
    return places.every((place) => place >= 0 && place < count) ? places : null;
  };
}
