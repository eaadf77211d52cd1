//! Checks the description of the admin API (`docs/admin-api.md`, `docs/admin-api.json`) against its
//! sources: the fields of its documents, its paths, and the words of its errors.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::markdown::{quoted, tables, tables_of};
use super::sources::one_line;
use super::{nothing_found, read};

/// Where the structures are that become JSON.
const STRUCTURES: [&str; 6] = [
    "document.rs",
    "document/learned.rs",
    "cache.rs",
    "accepting.rs",
    "interception.rs",
    "workers.rs",
];
/// Where requests are rejected.
const REFUSALS: [&str; 4] =
    ["admin/routes.rs", "admin/routes/cache.rs", "reload.rs", "reload/temporary.rs"];

fn description() -> Value {
    serde_json::from_str(&read("docs/admin-api.json")).expect("docs/admin-api.json is JSON")
}

/// Returns the keys of an object.
fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// Returns the text between the first `before` and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(inner, _)| inner)
}

/// Returns the members that each structure of a source has as JSON. `+Type` stands for those of
/// another structure.
fn structures(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    let (mut name, mut attribute) = (None, String::new());
    for line in text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default().lines() {
        let line = line.trim();
        if line.starts_with("#[") {
            attribute.push_str(line);
            continue;
        }
        if let Some(found) = between(line, "pub(crate) struct ", " {") {
            name = attribute.contains("Serialize").then(|| found.to_owned());
        } else if line == "}" {
            name = None;
        } else if let (Some(name), Some((field, kind))) =
            (&name, line.strip_prefix("pub(crate) ").and_then(|rest| rest.split_once(": ")))
        {
            let member = match between(&attribute, "rename = \"", "\"") {
                Some(other) => other.to_owned(),
                None if attribute.contains("flatten") => format!("+{}", kind.trim_end_matches(',')),
                None => field.to_owned(),
            };
            found.entry(name.clone()).or_insert_with(BTreeSet::new).insert(member);
        }
        if !line.starts_with("//") {
            attribute.clear();
        }
    }
    found
}

#[test]
fn every_document_has_the_described_fields() {
    let sources = STRUCTURES.iter().map(|file| read(&format!("crates/weir/src/admin/{file}")));
    let all: BTreeMap<String, BTreeSet<String>> =
        sources.flat_map(|text| structures(&text)).collect();
    assert!(all.len() > 40, "only {} structures found", all.len());
    let inner = |member: &String| member.strip_prefix('+').map(str::to_owned);
    let described = description();
    let schemas = &described["components"]["schemas"];
    let mut findings = Vec::new();
    for (name, members) in &all {
        let flat: BTreeSet<String> = members.iter().filter_map(inner).collect();
        let mut real: BTreeSet<String> =
            members.iter().filter(|member| inner(member).is_none()).cloned().collect();
        real.extend(flat.iter().flat_map(|name| all[name].iter().cloned()));
        let is_inside = all.values().flatten().any(|member| inner(member).as_ref() == Some(name));
        let told = keys(&schemas[name]["properties"]);
        if told != real && !(told.is_empty() && is_inside) {
            let differences: Vec<_> = told.symmetric_difference(&real).collect();
            findings.push(format!("docs/admin-api.json: {name} differs in {differences:?}"));
        }
    }
    let gone = keys(schemas).into_iter().filter(|name| !all.contains_key(name));
    findings.extend(gone.map(|name| format!("docs/admin-api.json: {name} is no structure")));
    nothing_found(&findings);
}

/// Returns a path with `*` in place of its variables: `{name}`, or a word in capitals.
fn shape(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let is_variable = |part: &str| {
        part.starts_with('{') || (!part.is_empty() && part == part.to_ascii_uppercase())
    };
    let parts = path.split('/').map(|part| if is_variable(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Returns the requests that `docs/admin-api.json` describes, as `GET /v1/jobs/*`.
fn described_requests() -> BTreeSet<String> {
    let described = description();
    let paths = described["paths"].as_object().expect("paths");
    let of = |(path, methods): (&String, &Value)| {
        keys(methods)
            .into_iter()
            .map(|method| format!("{} {}", method.to_uppercase(), shape(path)))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn the_page_and_the_description_have_the_same_requests() {
    let page = read("docs/admin-api.md");
    let cells = tables(&page)
        .into_iter()
        .filter(|table| table.head[0] == "request")
        .flat_map(|table| table.rows);
    let told = cells.map(|row| {
        let request = row[0].trim_matches('`');
        let (method, path) = request.split_once(' ').unwrap_or((request, ""));
        format!("{method} {}", shape(path))
    });
    assert_eq!(told.collect::<BTreeSet<_>>(), described_requests());
}

/// Returns the paths that the arms of a source match: `(Door::Admin, ["v1", "bans", whom])`.
fn matched_paths(text: &str) -> BTreeSet<String> {
    let arms = text
        .lines()
        .filter_map(|line| between(line, "(Door::Admin, [", "]").or(between(line, "(_, [", "]")));
    let part = |part: &str| {
        part.strip_prefix('"')
            .map_or_else(|| "*".to_owned(), |text| text.trim_matches('"').to_owned())
    };
    arms.map(|arm| arm.split(", ").map(|one| format!("/{}", part(one))).collect()).collect()
}

#[test]
fn every_path_is_described() {
    let text = read("crates/weir/src/admin/routes.rs");
    let mut real = matched_paths(&text);
    assert!(real.len() > 15, "{real:?}");
    // Orders to servers, and paths of the cache, are words of another match.
    let orders = between(&text, "\nfn command(", "\n}").expect("the orders");
    let orders = orders.lines().filter_map(|line| between(line, "\"", "\" => Some"));
    assert!(real.remove("/v1/servers/*/*/*") && real.remove("/v1/cache/*"));
    real.extend(orders.map(|order| format!("/v1/servers/*/*/{order}")));
    let cache = read("crates/weir/src/admin/routes/cache.rs");
    let below = cache.lines().filter_map(|line| between(line, "            [\"", "\"] => "));
    real.extend(below.map(|word| format!("/v1/cache/{word}")));
    real.insert("/v1/cache".to_owned());
    let told = described_requests()
        .into_iter()
        .filter_map(|request| Some(request.split_once(' ')?.1.to_owned()));
    assert_eq!(told.collect::<BTreeSet<_>>(), real);
}

/// Returns the words of errors in a source.
fn error_words(text: &str) -> BTreeSet<String> {
    let refusals = text.split("refusal(StatusCode::").skip(1).filter_map(|rest| {
        let (status, rest) = rest.split_once(", ")?;
        let is_word = status.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
            && rest.starts_with('"');
        rest.split('"').nth(1).filter(|_| is_word)
    });
    let pairs = text.split("Err((\"").skip(1).filter_map(|rest| rest.split('"').next());
    let slots = text.split("ok_or_else(|| (\"").skip(1).filter_map(|rest| rest.split('"').next());
    let unwanted = text
        .split("Unwanted::")
        .skip(1)
        .filter_map(|rest| between(rest.split(',').next()?, " => \"", "\""));
    let all = refusals.chain(pairs).chain(slots).chain(unwanted);
    all.filter(|word| !word.contains(' ')).map(str::to_owned).collect()
}

/// Returns path, status and word of each error that `docs/admin-api.json` describes.
fn described_errors() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (path, methods) in description()["paths"].as_object().into_iter().flatten() {
        for (_, operation) in methods.as_object().into_iter().flatten() {
            let responses = operation["responses"].as_object().into_iter().flatten();
            for (status, response) in
                responses.filter(|(_, response)| response["content"]["text/plain"].is_null())
            {
                let words = quoted(response["description"].as_str().unwrap_or_default())
                    .into_iter()
                    .skip(1);
                let is_error = !status.starts_with('2');
                found.extend(
                    words.filter(|_| is_error).map(|word| (path.clone(), status.clone(), word)),
                );
            }
        }
    }
    found
}

#[test]
fn every_error_is_in_the_page() {
    let sources = REFUSALS.iter().map(|file| read(&format!("crates/weir/src/{file}")));
    let mut real: BTreeSet<String> =
        sources.flat_map(|text| error_words(&one_line(&text))).collect();
    assert!(real.remove("foreign-host"), "only the metrics listener has it");
    let page = read("docs/admin-api.md");
    let rows = tables_of(&page, &["error", "status", "meaning"]).concat();
    let told: BTreeSet<String> =
        rows.iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    assert_eq!(told, real);
    let status_of = |word: &str| {
        rows.iter().find(|row| row[0].trim_matches('`') == word).map(|row| row[1].clone())
    };
    let findings: Vec<String> = described_errors()
        .into_iter()
        .filter(|(_, status, word)| status_of(word).as_ref() != Some(status))
        .map(|(path, status, word)| format!("docs/admin-api.json: {path} has {word} with {status}"))
        .collect();
    nothing_found(&findings);
}

#[test]
fn members_and_paths_are_found() {
    let text = "/// A.\n#[derive(Serialize)]\n#[serde(default)]\npub(crate) struct A {\n    \
        /// b.\n    pub(crate) b: u8,\n    #[serde(rename = \"1xx\")]\n    pub(crate) c: u8,\n    \
        #[serde(flatten)]\n    pub(crate) d: D,\n}\n\
        #[derive(Debug)]\npub(crate) struct No {\n    pub(crate) e: u8,\n}\n";
    let members = ["+D", "1xx", "b"].map(str::to_owned);
    assert_eq!(structures(text), BTreeMap::from([("A".to_owned(), BTreeSet::from(members))]));
    assert_eq!(shape("/v1/servers/UPSTREAM/SERVER/add?OPTION=VALUE"), "/v1/servers/*/*/add");
    assert_eq!(shape("/v1/jobs/{number}"), "/v1/jobs/*");
    let arms = "(Door::Metrics, [\"no\"]) => x\n(Door::Admin, [\"v1\", \"bans\", whom, \"add\"]) \
        => {\n(_, [\"healthz\"]) => y\n";
    assert_eq!(
        matched_paths(arms),
        BTreeSet::from(["/v1/bans/*/add".to_owned(), "/healthz".to_owned()])
    );
    assert_eq!(
        error_words("refusal(StatusCode::A, \"a-b\", message)"),
        BTreeSet::from(["a-b".to_owned()])
    );
}
