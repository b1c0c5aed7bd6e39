/**
 * A form made from a JSON Schema, for the answer to a question.
 *
 * It knows what forms need: texts, numbers, choices, flags, lists, nested objects, and references within the schema. For
 * everything else there is a field for JSON. The agent checks the answer again, so its patterns are not run here.
 */

import { html, useId, useMemo, useState } from "./vendor/preact.js";

const DEEPEST = 5;
const MOST_FIELDS = 60;
const MOST_CHOICES = 500;
/** The most schemas that are visited for one field, because alternatives may refer to each other. */
const MOST_LOOKED_AT = 1000;

/** Return the schema for the answer to a message, null without one. */
export function schemaOf(message) {
  for (const part of message?.parts ?? []) {
    const schema = part?.data?.schema;
    if (part?.mediaType === "application/schema+json" && schema !== null && typeof schema === "object") return schema;
  }
  return null;
}

/** Follow references within the schema, and leave out null as an alternative. */
function resolved(schema, whole, depth = 0, looked = { count: 0 }) {
  if (schema === null || typeof schema !== "object" || depth > 10 || ++looked.count > MOST_LOOKED_AT) return {};
  if (typeof schema.$ref === "string") {
    if (!schema.$ref.startsWith("#")) return {};
    let found = whole;
    for (const name of schema.$ref.slice(1).split("/").filter(Boolean)) {
      const key = name.replaceAll("~1", "/").replaceAll("~0", "~");
      found = found !== null && typeof found === "object" && Object.hasOwn(found, key) ? found[key] : undefined;
    }
    const { $ref, ...own } = schema;
    return { ...resolved(found, whole, depth + 1, looked), ...own };
  }
  const options = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(options)) {
    const { anyOf, oneOf, ...own } = schema;
    const kinds = options.map((option) => resolved(option, whole, depth + 1, looked));
    const kept = kinds.filter((option) => option.type !== "null");
    if (kept.length === 1) return { ...kept[0], ...own, isNullable: kept.length < kinds.length };
    if (kept.length > 0 && kept.every((option) => "const" in option)) {
      const titles = kept.map((option) => option.title);
      return { ...own, enum: kept.map((option) => option.const), titles, isNullable: kept.length < kinds.length };
    }
    return { ...own, isAnything: true };
  }
  if (Array.isArray(schema.allOf) && schema.allOf.length === 1) {
    const { allOf, ...own } = schema;
    return { ...resolved(allOf[0], whole, depth + 1, looked), ...own };
  }
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((type) => type !== "null");
    if (types.length !== 1) return { ...schema, isAnything: true };
    return { ...schema, type: types[0], isNullable: types.length < schema.type.length };
  }
  return schema;
}

/** Return which kind of field a schema needs. */
function kindOf(schema, depth) {
  if (schema.isAnything || depth > DEEPEST) return "json";
  if ("const" in schema) return "const";
  if (Array.isArray(schema.enum) && schema.enum.length <= MOST_CHOICES) return "choice";
  if (schema.type === "boolean") return "flag";
  if (schema.type === "integer" || schema.type === "number") return "number";
  if (schema.type === "string") return "text";
  if (schema.type === "object" || schema.properties) {
    const names = Object.keys(schema.properties ?? {});
    return names.length > 0 ? "object" : "json";
  }
  if (schema.type === "array" && schema.items && typeof schema.items === "object" && !Array.isArray(schema.items)) return "list";
  return "json";
}

/** Return the schema, or that of any value if the form would have too many fields, as recursive schemas do. */
function bounded(schema) {
  let count = 0;
  const visit = (one, depth) => {
    const own = resolved(one, schema);
    const kind = kindOf(own, depth);
    count += 1;
    if (count > MOST_FIELDS) return;
    if (kind === "object") for (const member of Object.values(own.properties)) if (count <= MOST_FIELDS) visit(member, depth + 1);
    if (kind === "list") visit(own.items, depth + 1);
  };
  visit(schema, 0);
  return count > MOST_FIELDS ? {} : schema;
}

/** Return the initial value of a field. */
function initial(schema, whole, depth = 0) {
  const own = resolved(schema, whole);
  const kind = kindOf(own, depth);
  if (kind === "const") return own.const;
  if (kind === "object") {
    return Object.fromEntries(Object.entries(own.properties).map(([name, one]) => [name, initial(one, whole, depth + 1)]));
  }
  if (kind === "list") return Array.isArray(own.default) ? own.default.map((item) => item) : [];
  if (kind === "flag") return own.default === true;
  if (kind === "json") return own.default === undefined ? "" : JSON.stringify(own.default, null, 2);
  if (kind === "choice") {
    const at = own.enum.findIndex((one) => JSON.stringify(one) === JSON.stringify(own.default));
    return at >= 0 ? String(at) : "";
  }
  return own.default === undefined || own.default === null ? "" : String(own.default);
}

/** Return the JSON value of an input, undefined for an empty one. Problems are added as `{path, text}`. */
function read(schema, whole, entered, isRequired, path, problems, depth = 0) {
  const own = resolved(schema, whole);
  const kind = kindOf(own, depth);
  const wrong = (text) => { problems.push({ path, text }); return undefined; };
  const missing = () => (isRequired ? (own.isNullable ? null : wrong("This is required.")) : undefined);
  if (kind === "const") return own.const;
  if (kind === "flag") return entered === true;
  if (kind === "object") {
    const value = {};
    const needed = Array.isArray(own.required) ? own.required : [];
    for (const [name, one] of Object.entries(own.properties)) {
      const member = read(one, whole, entered?.[name], needed.includes(name), `${path}/${name}`, problems, depth + 1);
      if (member !== undefined) Object.defineProperty(value, name, { value: member, enumerable: true });
    }
    return value;
  }
  if (kind === "list") {
    const items = (entered ?? []).map((item, index) => read(own.items, whole, item, true, `${path}/${index}`, problems, depth + 1));
    if (own.minItems > items.length) return wrong(`At least ${own.minItems} are required.`);
    if (own.maxItems < items.length) return wrong(`At most ${own.maxItems} are allowed.`);
    return items.length === 0 && !isRequired ? undefined : items;
  }
  if (kind === "choice") return entered === "" || entered === undefined ? missing() : own.enum[Number(entered)];
  const text = String(entered ?? "").trim();
  if (text === "") return kind === "text" && isRequired && entered === "" && !(own.minLength > 0) && own.default === "" ? "" : missing();
  if (kind === "json") {
    try { return JSON.parse(text); } catch (error) { return wrong(`This is not valid JSON: ${error.message}`); }
  }
  if (kind === "number") {
    const value = Number(text.replace(",", "."));
    if (!Number.isFinite(value)) return wrong("This is not a number.");
    if (own.type === "integer" && !Number.isInteger(value)) return wrong("This must be a whole number.");
    if (value < own.minimum) return wrong(`This must be ${own.minimum} or more.`);
    if (value > own.maximum) return wrong(`This must be ${own.maximum} or less.`);
    if (value <= own.exclusiveMinimum) return wrong(`This must be more than ${own.exclusiveMinimum}.`);
    if (value >= own.exclusiveMaximum) return wrong(`This must be less than ${own.exclusiveMaximum}.`);
    return value;
  }
  if (text.length < own.minLength) return wrong(`This needs at least ${own.minLength} characters.`);
  if (text.length > own.maxLength) return wrong(`This may have at most ${own.maxLength} characters.`);
  // The browser's field has no time zone.
  const isLocal = own.format === "date-time" && /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?$/.test(text);
  return isLocal ? new Date(text).toISOString() : text;
}

/** The form. `onAnswer(value)` is called with a value that fits, as far as the form can tell. */
export function SchemaForm({ schema: asked, onAnswer, disabled = false, label = "Send the answer" }) {
  const schema = useMemo(() => bounded(asked), [asked]);
  const [entered, setEntered] = useState(() => initial(schema, schema));
  const [problems, setProblems] = useState([]);
  const id = useId();
  const submit = (event) => {
    event.preventDefault();
    const found = [];
    const value = read(schema, schema, entered, true, "", found);
    setProblems(found);
    if (found.length === 0) onAnswer(value);
    else requestAnimationFrame(() => document.getElementById(`${id}${found[0].path}`)?.focus());
  };
  return html`
    <form class="schema-form" noValidate onSubmit=${submit}>
      <${Field} schema=${schema} whole=${schema} value=${entered} onValue=${setEntered} path="" id=${id} problems=${problems}
        isRequired=${true} depth=${0} />
      <div class="dialog-buttons"><button type="submit" class="primary" disabled=${disabled}>${label}</button></div>
    </form>`;
}

const INPUT_TYPES = { date: "date", "date-time": "datetime-local", time: "time", email: "email", uri: "url", password: "password" };

function Field({ schema, whole, value, onValue, path, name = "", id, problems, isRequired, depth }) {
  const own = resolved(schema, whole);
  const kind = kindOf(own, depth);
  const fieldId = `${id}${path}`;
  const problem = problems.find((one) => one.path === path);
  const title = typeof own.title === "string" && (name === "" || own.title !== "") && depth > 0 ? own.title : words(name);
  const hint = typeof own.description === "string" ? own.description : "";
  const about = {
    id: fieldId,
    "aria-invalid": problem ? "true" : undefined,
    "aria-describedby": hint || problem ? `${fieldId}-about` : undefined,
  };
  const notes = (hint || problem) && html`
    <span class="field-about" id=${`${fieldId}-about`}>
      ${problem && html`<b class="tone-bad">${problem.text} </b>`}<span class="muted">${hint}</span>
    </span>`;
  const shared = { whole, id, problems, depth: depth + 1 };
  if (kind === "const") return null;
  if (kind === "object") {
    const needed = Array.isArray(own.required) ? own.required : [];
    const fields = Object.entries(own.properties).map(([member, one]) => html`
      <${Field} key=${member} ...${shared} schema=${one} name=${member} value=${value?.[member]} path=${`${path}/${member}`}
        isRequired=${needed.includes(member)} onValue=${(next) => onValue({ ...value, [member]: next })} />`);
    return depth === 0 ? html`<div class="fields">${hint && html`<p class="muted">${hint}</p>`}${fields}</div>`
      : html`<fieldset class="group"><legend>${title}</legend>${notes}<div class="fields">${fields}</div></fieldset>`;
  }
  if (kind === "list") {
    const items = Array.isArray(value) ? value : [];
    return html`
      <fieldset class="group"><legend>${title || "Items"}${isRequired ? "" : html` <span class="muted">optional</span>`}</legend>${notes}
        ${items.map((item, index) => html`
          <div class="list-item" key=${index}>
            <${Field} ...${shared} schema=${own.items} name=${`${index + 1}`} value=${item} path=${`${path}/${index}`} isRequired=${true}
              onValue=${(next) => onValue(items.map((one, at) => (at === index ? next : one)))} />
            <button type="button" class="small quiet" aria-label=${`Remove ${title} ${index + 1}`}
              onClick=${() => onValue(items.filter((_, at) => at !== index))}>✕</button>
          </div>`)}
        <button type="button" class="small" id=${fieldId}
          onClick=${() => onValue([...items, initial(own.items, whole, depth + 1)])}>Add</button>
      </fieldset>`;
  }
  if (kind === "flag") {
    return html`
      <div class="field">
        <label class="check">
          <input type="checkbox" ...${about} checked=${value === true} onChange=${(event) => onValue(event.target.checked)} />
          ${title || "Yes"}
        </label>
        ${notes}
      </div>`;
  }
  const isOptional = !isRequired || own.isNullable;
  const label = html`
    <label for=${fieldId}>
      <span class="label">${title || "Answer"}</span>${isOptional && html` <span class="muted">optional</span>`}
    </label>`;
  const onInput = (event) => onValue(event.target.value);
  let input;
  if (kind === "choice") {
    const shown = (one, index) => {
      if (typeof own.titles?.[index] === "string") return own.titles[index];
      return typeof one === "string" ? one : JSON.stringify(one);
    };
    input = html`<select ...${about} onChange=${onInput}>
      <option value="" selected=${value === ""}>Choose …</option>
      ${own.enum.map((one, index) => html`
        <option value=${String(index)} selected=${value === String(index)}>${shown(one, index)}</option>`)}</select>`;
  } else if (kind === "json") {
    const code = { class: "mono", rows: 4, spellcheck: false, placeholder: "JSON" };
    input = html`<textarea ...${about} ...${code} value=${value ?? ""} onInput=${onInput}></textarea>`;
  } else if (kind === "number") {
    const mode = own.type === "integer" ? "numeric" : "decimal";
    input = html`<input ...${about} type="text" inputmode=${mode} autocomplete="off" value=${value ?? ""} onInput=${onInput} />`;
  } else if (own.maxLength > 200 || own.format === "textarea") {
    input = html`<textarea ...${about} rows="3" value=${value ?? ""} onInput=${onInput}></textarea>`;
  } else {
    const type = Object.hasOwn(INPUT_TYPES, own.format) ? INPUT_TYPES[own.format] : "text";
    input = html`<input ...${about} type=${type} autocomplete="off" value=${value ?? ""} onInput=${onInput} />`;
  }
  return html`<div class="field">${label}${input}${notes}</div>`;
}

/** Return the name of a field as words: `firstName` and `first_name` are "First name". */
function words(name) {
  const text = String(name).replace(/([a-z\d])([A-Z])/g, "$1 $2").replaceAll("_", " ").toLowerCase().trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}
