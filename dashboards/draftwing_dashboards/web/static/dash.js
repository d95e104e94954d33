// Newer pieces of the page, as the server rendered (and escaped) them.
"use strict";
const link = document.getElementById("link");
const source = new EventSource("/dash/events");
source.onopen = () => { link.textContent = "live"; };
source.onerror = () => {
  const over = source.readyState === EventSource.CLOSED;
  link.textContent = over ? "not connected; load the page again" : "not connected; trying again";
};
source.onmessage = (event) => {
  for (const [name, html] of Object.entries(JSON.parse(event.data))) {
    document.getElementById(name).innerHTML = html;
  }
};
