// Which earlier tokens a token of a conversation looks at: its tokens as buttons, shaded by the weights of a layer's heads.

function choice(label, names) {
  const select = document.createElement("select");
  names.forEach((name, value) => select.add(new Option(name, value)));
  const node = document.createElement("label");
  node.append(`${label} `, select);
  return [node, select];
}

// `ask` gets {position, layer} and promises the server's answer for that position, or the last token.
export async function attentionView(ask) {
  let view = await ask({});
  const panel = document.createElement("section");
  panel.className = "attention";
  panel.setAttribute("aria-label", "Attention");
  const [layerLabel, layer] = choice("Layer", Array.from({length: view.num_layers}, (_, i) => String(i)));
  const [headLabel, head] = choice("Head", ["mean of all", ...Array.from({length: view.num_heads}, (_, i) => String(i))]);
  layer.value = view.layer;
  const controls = document.createElement("p");
  controls.append(layerLabel, headLabel);
  const note = document.createElement("p");
  note.setAttribute("role", "status");
  const tokens = document.createElement("div");
  tokens.className = "tokens";
  const buttons = view.tokens.map((text, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text.replaceAll("\n", "⏎") || "·";
    button.classList.toggle("prompt", i < view.prompt_tokens);
    button.addEventListener("click", () => look({position: i, layer: Number(layer.value)}));
    return button;
  });
  tokens.append(...buttons);
  panel.append(controls, note, tokens);

  // A control token has no text.
  const name = (i) => view.tokens[i].trim() || buttons[i].textContent;

  function draw() {
    const rows = head.value === "0" ? view.weights : [view.weights[head.value - 1]];
    const weights = buttons.map((_, i) => rows.reduce((sum, row) => sum + (row[i] ?? 0), 0) / rows.length);
    const largest = Math.max(...weights, 1e-9);
    buttons.forEach((button, i) => {
      button.style.setProperty("--weight", weights[i] / largest);
      button.title = i <= view.position ? `${(100 * weights[i]).toFixed(1)} %` : "comes later";
      button.setAttribute("aria-pressed", String(i === view.position));
    });
    const first = weights.indexOf(Math.max(...weights));
    note.textContent = `“${name(view.position)}” looks most at “${name(first)}” (${(100 * weights[first]).toFixed(1)} %). Choose a token to see where it looks.`;
  }

  async function look(what) {
    try {
      view = await ask(what);
      draw();
    } catch (error) {
      note.textContent = error.message;
    }
  }

  layer.addEventListener("change", () => look({position: view.position, layer: Number(layer.value)}));
  head.addEventListener("change", draw);
  draw();
  return panel;
}
