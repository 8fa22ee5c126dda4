// The routes, from the server's own description of them.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#routes",
  validatorUrl: null, // it would send the description to another server
  deepLinking: true,
  defaultModelsExpandDepth: 0,
});
