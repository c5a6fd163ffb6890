// A text field that completes words (the ARIA pattern "editable combobox with list").

import { el } from "./dom.js";

const PAUSE_MS = 70;

export class Combobox {
  // `suggest(text)` resolves to words; `choose(word)` is called with a chosen suggestion.
  constructor(input, suggest, choose) {
    this.input = input;
    this.suggest = suggest;
    this.choose = choose;
    this.active = -1;
    this.asked = 0;
    this.list = el("ul", { id: `${input.id}-options`, role: "listbox", class: "options" });
    this.list.setAttribute("aria-label", "Suggestions");
    this.list.hidden = true;
    input.after(this.list);
    input.setAttribute("role", "combobox");
    input.setAttribute("aria-autocomplete", "list");
    input.setAttribute("aria-controls", this.list.id);
    input.setAttribute("aria-expanded", "false");
    input.addEventListener("input", () => this.#later());
    input.addEventListener("keydown", (event) => this.#key(event));
    input.addEventListener("blur", () => this.close());
    input.form?.addEventListener("submit", () => this.close());
    this.list.addEventListener("pointerdown", (event) => event.preventDefault()); // keeps the focus
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.#pick(option);
    });
  }

  get options() {
    return [...this.list.children];
  }

  close() {
    clearTimeout(this.timer);
    this.asked += 1; // an answer that arrives later is ignored
    this.list.hidden = true;
    this.list.replaceChildren();
    this.#mark(-1);
    this.input.setAttribute("aria-expanded", "false");
  }

  #later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), PAUSE_MS);
  }

  async open() {
    const text = this.input.value;
    const asked = ++this.asked;
    let words = [];
    try {
      words = text ? await this.suggest(text) : [];
    } catch {
      // Without suggestions, a search still reports what is wrong.
    }
    if (asked !== this.asked || document.activeElement !== this.input) return;
    const options = words.map((word, i) => {
      const option = el("li", { id: `${this.input.id}-option-${i}`, role: "option" }, word);
      option.setAttribute("aria-selected", "false");
      return option;
    });
    this.list.replaceChildren(...options);
    this.list.hidden = options.length === 0;
    this.input.setAttribute("aria-expanded", String(options.length > 0));
    this.#mark(-1);
  }

  #mark(index) {
    this.active = index;
    for (const [i, option] of this.options.entries()) {
      option.setAttribute("aria-selected", String(i === index));
      if (i === index) option.scrollIntoView({ block: "nearest" });
    }
    if (index < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", this.options[index].id);
  }

  #pick(option) {
    const word = option.textContent;
    this.input.value = word;
    this.close();
    this.choose(word);
  }

  async #key(event) {
    if (event.isComposing) return;
    const { options } = this;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!options.length) {
        await this.open();
        return;
      }
      const step = event.key === "ArrowDown" ? 1 : -1;
      const places = options.length + 1; // the arrow keys also stop at the field itself
      this.#mark(((this.active + 1 + step + places) % places) - 1);
    } else if (event.key === "Enter" && this.active >= 0) {
      event.preventDefault();
      this.#pick(options[this.active]);
    } else if (event.key === "Escape") {
      if (this.list.hidden) this.input.value = "";
      event.preventDefault();
      this.close();
    }
  }
}
