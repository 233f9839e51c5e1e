// What the page's script is made of. Without the script the page says the same, and nothing in it seems to be broken.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function build(space, name, attributes, children) {
  const node = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children); // names become text, never markup
  return node;
}

function html(name, attributes = {}, ...children) {
  return build(document.documentElement.namespaceURI, name, attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return build(SVG, name, attributes, children);
}

function button(text, says, act) {
  const node = html("button", { type: "button", title: says }, text);
  node.addEventListener("click", act);
  return node;
}

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function csv(rows) {
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return rows.map((row) => row.map((value) => quoted(String(value ?? ""))).join(",") + "\n").join("");
}

// What the reader did, by where it was done: on a live page it outlasts the table or chart it was done to.

const kept = new Map();

function memory(node, fresh) {
  const near = node.closest("[id]") ?? document.body;
  const place = `${near.id} ${node.localName} ${[...near.querySelectorAll(node.localName)].indexOf(node)}`;
  if (!kept.has(place)) kept.set(place, fresh);
  return kept.get(place);
}
