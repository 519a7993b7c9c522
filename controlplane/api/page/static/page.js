"use strict";

// What markup cannot do: say that the daemon no longer answers, and send an order with the token in a header,
// so that it stands in no address, no history and no store.

document.addEventListener("htmx:finally:request", (event) => {
  const answered = event.detail.ctx.response?.status === 200;
  document.documentElement.toggleAttribute("data-lost", !answered);
});

const form = document.querySelector("form[data-method]");
const dialog = document.querySelector("dialog");

if (form && dialog) {
  const trouble = document.querySelector("#trouble");

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    trouble.textContent = "";
    const fields = new FormData(form);
    const sentence = form.dataset.sentence.replace(/\{(value|until)\}/g, (_, name) => spoken(name, fields));
    dialog.querySelector("p").textContent = sentence;
    dialog.returnValue = "";
    dialog.showModal();
  });

  dialog.addEventListener("close", async () => {
    if (dialog.returnValue !== "yes") return;
    const refused = await sent().catch((error) => `The order did not arrive: ${error.message}`);
    trouble.textContent = refused;
    if (!refused) location.assign("/");
  });

  const spoken = (name, fields) => {
    const field = form.elements[name];
    return field.selectedOptions ? field.selectedOptions[0].textContent : fields.get(name);
  };

  // The sentence with which the API refuses; "" where the order stands.
  const sent = async () => {
    const { token, ...order } = Object.fromEntries(new FormData(form));
    if (!order.until) delete order.until;
    const method = form.dataset.method;
    const asks = method === "DELETE" ? `?${new URLSearchParams(order)}` : "";
    const answer = await fetch(form.dataset.path + asks, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: asks ? undefined : JSON.stringify({ ...order, ...(order.until && { until: Number(order.until) }) }),
      credentials: "omit",
      redirect: "error",
    });
    return answer.ok ? "" : (await answer.json()).error.message;
  };
}
