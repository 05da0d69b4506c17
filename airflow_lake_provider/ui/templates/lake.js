"use strict";
// Airflow shows these pages in a frame that must not open windows nor navigate its parent. A link into Airflow itself
// is therefore followed by the parent: in its document, by a click there.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-outside]");
  if (!link || window.parent === window) return;
  event.preventDefault();
  const outside = window.parent.document.createElement("a");
  outside.href = link.href;
  window.parent.document.body.append(outside);
  outside.click();
  outside.remove();
});
