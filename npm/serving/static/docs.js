// The routes, from the server's own description of them.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#routes",
  validatorUrl: null, // it would send the description to another server
  defaultModelsExpandDepth: 0,
  onComplete() {
    // the library's head is in no landmark, and its headings skip a level
    document.querySelector(".information-container").setAttribute("role", "banner");
    for (const heading of document.querySelectorAll("h3.opblock-tag, .models h4")) heading.setAttribute("aria-level", "2");
    document.getElementById(location.hash.slice(1))?.scrollIntoView();
  },
});
