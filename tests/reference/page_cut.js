// What is wider than its place on a page: lines of code, tables, pictures.
() => [...document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .md-content img")]
  .filter(
    (element) => (element.localName !== "img" && element.scrollWidth > element.clientWidth + 1)
      || element.getBoundingClientRect().right > document.documentElement.clientWidth,
  )
  .map((element) => element.textContent.trim().slice(0, 40) || element.src)
