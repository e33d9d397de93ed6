/** The longest message of a provider that is kept, in UTF-16 units. */
export const MAX_MESSAGE_LENGTH = 2000;
const REDACTED = '[redacted]';
/** A shorter configured value is no secret, and its replacement would make texts unreadable. */
const MIN_SECRET_LENGTH = 4;

/** What gives a key away by its looks, configured or not. The first group, where there is one, stays. */
const LOOKS_SECRET: readonly RegExp[] = [
  /\b((?:Bearer|Basic)\s+)[\w.~+/=*-]{4,}/gi,
  /\b()(?:sk|pk|rk|gsk|xai|hf)[-_][\w*-]{6,}/g,
  /\b()AIza[\w-]{20,}/g,
  /([?&](?:key|api[-_]?key|access[-_]?token|auth|token)=)[^&\s"'<>\\]+/gi,
  /\b((?:key|api[-_]?key|access[-_]?token|secret)=)[^&\s"',;<>\\]+/gi,
  /(["']?\b(?:x-api-key|x-goog-api-key|api-key|apikey|authorization|proxy-authorization)\\?["']?\s*[:=]\s*\\?["']?)(?!\[redacted\]|Bearer |Basic )[^"'\s,}\\]+/gi,
];

/** Makes a text fit to be stored and shown: without secrets, well-formed, and no longer than `MAX_MESSAGE_LENGTH`. */
export type TextCleaner = (text: string) => string;

/** Replaces each secret wherever it stands, as it is, or encoded for a URL or in JSON, and nothing else. */
export function secretRemover(secrets: readonly string[]): (text: string) => string {
  const values = secrets
    .filter((secret) => secret.length >= MIN_SECRET_LENGTH)
    .flatMap((secret) => [secret, encodeURIComponent(secret), JSON.stringify(secret).slice(1, -1)]);
  // The longest first, so that a key which begins like another one is replaced whole.
  const spellings = [...new Set(values)].sort((a, b) => b.length - a.length);
  return (text) => spellings.reduce((clean, spelling) => clean.replaceAll(spelling, REDACTED), text);
}

/** @param secrets every configured key */
export function textCleaner(secrets: readonly string[]): TextCleaner {
  const remove = secretRemover(secrets);
  return (text) => {
    let clean = remove(text);
    for (const pattern of LOOKS_SECRET) clean = clean.replaceAll(pattern, `$1${REDACTED}`);
    return bounded(clean.replaceAll(/\p{Surrogate}/gu, '\ufffd'));
  };
}

/** Cuts between characters, never through a surrogate pair. Secrets are replaced before, so no part of one can be left at the cut. */
function bounded(text: string): string {
  if (text.length <= MAX_MESSAGE_LENGTH) return text;
  const last = text.charCodeAt(MAX_MESSAGE_LENGTH - 2);
  const end = last >= 0xd800 && last <= 0xdbff ? MAX_MESSAGE_LENGTH - 2 : MAX_MESSAGE_LENGTH - 1;
  return `${text.slice(0, end)}…`;
}
