/* A table that is wider than the page fades out on the side where there is more. */
document.addEventListener("DOMContentLoaded", () => {
  const tables = document.querySelectorAll(".pst-scrollable-table-container");
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
