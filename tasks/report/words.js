// The meaning of a word, shown beside the word on hover, focus and touch. The glossary at the end of the page has all.

const tip = element("div", { role: "tooltip", id: "tip", hidden: "" });
document.body.append(tip);

const WORDS = ".word, [data-word]";
const meaningOf = ({ dataset, textContent }) => shared.meanings[dataset.kind ?? "term"]?.[dataset.word ?? textContent];

/** Give an element the meaning of a word, if the word has one. */
function explain(target, kind, word) {
  if (shared.meanings[kind]?.[word]) Object.assign(target.dataset, { kind, word });
  return target;
}

function showMeaning(word) {
  const meaning = meaningOf(word);
  if (!meaning) return;
  tip.textContent = meaning;
  tip.hidden = false;
  word.setAttribute("aria-describedby", "tip");
  const place = word.getBoundingClientRect(), { width, height } = tip.getBoundingClientRect();
  const below = place.bottom + 6 + height <= innerHeight;
  tip.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8))}px`;
  tip.style.top = `${below ? place.bottom + 6 : Math.max(8, place.top - height - 6)}px`;
}

function hideMeaning() {
  tip.hidden = true;
  document.querySelector('[aria-describedby="tip"]')?.removeAttribute("aria-describedby");
}

const onWord = (act) => (event) => {
  const word = event.target.closest?.(WORDS);
  if (word) act(word);
};
for (const name of ["pointerover", "focusin", "click"]) document.addEventListener(name, onWord(showMeaning));
for (const name of ["pointerout", "focusout"]) document.addEventListener(name, onWord(hideMeaning));
document.addEventListener("scroll", hideMeaning, true);
// Escape hides a meaning first, and goes up only after that.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || tip.hidden) return;
  hideMeaning();
  event.stopImmediatePropagation();
}, true);
