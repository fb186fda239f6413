/* A table, a formula or code that is wider than the page fades out on the side where there is more. */
document.addEventListener("DOMContentLoaded", () => {
  const wide = ".pst-scrollable-table-container, div.math, div.highlight pre";
  const tables = document.querySelectorAll(wide);
  const mark = (table) => {
    const right = table.scrollWidth - table.clientWidth - table.scrollLeft;
    table.classList.toggle("more-right", right > 2);
  };
  tables.forEach((table) => {
    mark(table);
    table.addEventListener("scroll", () => mark(table), { passive: true });
    new ResizeObserver(() => mark(table)).observe(table);
  });
});

/* Long names break behind underscores and between words rather than inside them; NumPy does not. */
document.addEventListener("DOMContentLoaded", () => {
  const places = "h1, .bd-sidebar-primary a, .page-toc a, .bd-breadcrumbs a, .prev-next-title";
  for (const place of document.querySelectorAll(places)) {
    const texts = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) found.push(texts.currentNode);
    for (const text of found) {
      const parts = text.data.split(/(?<=_)|(?<=[a-z]{4})(?=[A-Z])|(?=\.)/);
      const broken = parts.flatMap((part) => [document.createElement("wbr"), part]);
      if (parts.length > 1) text.replaceWith(...broken.slice(1));
    }
  }
});
