"use strict";
(() => {
  const tip = document.createElement("div");
  tip.id = "tip"; tip.hidden = true; document.body.append(tip);
  let pinned = null;
  const text = node => (node.querySelector(":scope > title") || {}).textContent || node.getAttribute("title") || node.dataset.tip;
  const place = node => node.closest && node.closest("circle, rect.bar, g.layer, table.matrix td[tabindex]");
  const show = node => {
    const content = text(node), box = node.getBoundingClientRect();
    if (!content) return;
    tip.textContent = content; tip.hidden = false;
    const left = Math.min(box.left + scrollX + 12, scrollX + innerWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(left, 4) + "px"; tip.style.top = box.top + scrollY - tip.offsetHeight - 8 + "px";
  };
  document.addEventListener("mouseover", event => { const node = place(event.target); if (node && !pinned) show(node); });
  document.addEventListener("mouseout", () => { if (!pinned) tip.hidden = true; });
  document.addEventListener("focusin", event => { const node = place(event.target); if (node) show(node); });
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    for (let node = target; node; node = node.parentElement) if (node.localName === "details") node.open = true;
    if (target && target.localName === "details") target.scrollIntoView({block: "center"});
  };
  addEventListener("hashchange", open); open();
  document.addEventListener("click", event => {
    const key = event.target.closest("button[data-series]");
    if (key) {
      const off = key.classList.toggle("off"), panel = key.closest(".panel, details, section");
      for (const one of panel.querySelectorAll("svg.figure g[data-series]"))
        if (one.dataset.series === key.dataset.series) one.style.display = off ? "none" : "";
      return;
    }
    const node = place(event.target);
    pinned = node && node !== pinned ? node : null;
    if (node) show(node); else tip.hidden = true;
    if (event.target.closest("svg a")) open();
  });
})();
