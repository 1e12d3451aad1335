// Tables that are lists on a narrow screen. There the style makes rows and cells blocks, which takes their meaning from
// them for screen readers; the roles give it back.

import { el, keyed, setAttr, setText, show } from './dom.js';

// Table fills a table element. columns: {name, class?, hidden?, cell(td, item), make?(td)}; cell is called at each
// rendering and changes only what is another. Of more than few items the rest is shown when it is asked for.
export class Table {
  #all = false;

  constructor(table, columns, { key, empty, refuge, few = 15 }) {
    Object.assign(this, { table, columns, key, empty, refuge, few });
    const head = el('tr', { role: 'row' }, ...columns.map((c) =>
      el('th', { scope: 'col', role: 'columnheader', class: c.class ?? '' }, el('span', { text: c.name, class: c.hidden ? 'hidden' : '' }))));
    this.body = el('tbody', { role: 'rowgroup' });
    setAttr(table, 'role', 'table');
    table.append(el('thead', { role: 'rowgroup' }, head), this.body);
    this.more = el('button', { type: 'button', class: 'more', 'aria-controls': table.id, hidden: '' });
    this.more.addEventListener('click', () => {
      this.#all = !this.#all;
      this.render(this.items);
    });
    table.after(this.more);
  }

  render(items) {
    this.items = items;
    show(this.more, items.length > this.few);
    setText(this.more, this.#all ? 'Show fewer' : `Show all ${items.length}`);
    setAttr(this.more, 'aria-expanded', this.#all);
    show(this.table, items.length > 0);
    if (this.empty) show(this.empty, items.length === 0);
    keyed(this.body, this.#all ? items : items.slice(0, this.few), {
      key: this.key,
      refuge: this.refuge,
      make: () => el('tr', { role: 'row' }, ...this.columns.map((c, i) => {
        const cell = i === 0 ? el('th', { scope: 'row', role: 'rowheader' }) : el('td', { role: 'cell' });
        cell.className = c.class ?? '';
        if (!c.hidden) cell.dataset.label = c.name;
        c.make?.(cell);
        return cell;
      })),
      update: (row, item) => this.columns.forEach((c, i) => {
        const cell = row.children[i];
        c.cell(cell, item);
        cell.toggleAttribute('data-none', cell.textContent === '–'); // a narrow screen leaves it out
      }),
    });
  }
}

// text is a cell that is one text.
export const text = (of) => (cell, item) => setText(cell, of(item));

// chip is a cell with a word that has a colour; of gives [word, tone].
export const chip = (of) => ({
  make: (cell) => cell.append(el('span', { class: 'chip' })),
  cell: (cell, item) => setChip(cell.firstElementChild, ...of(item)),
});

export function setChip(e, word, tone) {
  setText(e, word);
  setAttr(e, 'data-tone', tone);
}

// lines is a cell with a main line and a lesser one.
export const lines = (of) => ({
  make: (cell) => cell.append(el('span', { class: 'main' }), el('span', { class: 'sub' })),
  cell: (cell, item) => {
    const [main, sub] = of(item);
    setText(cell.children[0], main);
    setText(cell.children[1], sub ?? '');
    show(cell.children[1], Boolean(sub));
  },
});
