/** Conversations with the agent. */
import { html } from "./vendor/preact.js";
import { useTitle } from "./app.js";
export function page() {
  useTitle("Chat");
  return html`<h1>Chat</h1>`;
}
