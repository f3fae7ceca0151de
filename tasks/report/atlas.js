// The filters of the atlas: a case is shown if it contains the text, and if one of its states is checked.
const rows = [...document.querySelectorAll("#cases tbody tr")].map((row) => [row, row.textContent.toLowerCase(), row.dataset.states.split(" ")]);
const text = document.getElementById("text");
const boxes = [...document.querySelectorAll("input[name=state]")];

function filter() {
  const wanted = text.value.trim().toLowerCase();
  const states = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
  let shown = 0;
  for (const [row, content, found] of rows) {
    row.hidden = !content.includes(wanted) || !found.some((state) => states.has(state));
    shown += !row.hidden;
  }
  document.getElementById("count").textContent = shown === 1 ? "1 case" : `${shown} cases`;
}

text.addEventListener("input", filter);
for (const box of boxes) box.addEventListener("change", filter);
