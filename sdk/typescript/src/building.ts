import type { Server } from "./control/server.js";
import { TurnstoneError } from "./errors.js";
import { TemplateState } from "./gen/turnstone/v1/template_pb.js";

/** The template of sandboxes whose caller names none. */
export const defaultImage = "base";
const templateName = /^[a-z0-9][a-z0-9._-]{0,62}$/;

/** Says something through the console. */
export function warn(text: string): void {
  console.warn(`turnstone: ${text}`);
}

/**
 * Says that a sandbox waits for the build of its template, which takes minutes in which the server
 * answers nothing. It asks the server beside the creation, which it does not delay. Call the returned
 * function when the creation has ended.
 */
export function sayIfBuilt(
  server: Server,
  image: string,
  say: (text: string) => void,
  built: Set<string>,
): () => void {
  if (image === "" || built.has(image)) return () => undefined;
  const over = new AbortController();
  const template = templateName.test(image);
  const tell = (): void => {
    if (over.signal.aborted) return;
    say(
      template
        ? `template ${image} is not built yet: the server builds it, which takes some minutes`
        : `image ${image} is not here yet: the server pulls it and prepares it, which takes some minutes`,
    );
  };
  server.templates
    .getTemplate({ template: image }, { signal: over.signal })
    .then((a) => {
      if (a.template?.state === TemplateState.BUILT) built.add(image);
      else tell();
    })
    .catch((err: unknown) => {
      // of other errors, such as those of a token that may not see templates, the creation tells
      if (err instanceof TurnstoneError && err.kind === "not_found" && !template) tell();
    });
  return () => over.abort();
}
