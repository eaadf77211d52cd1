//! Checks the page about the access log against the names in the code.

use weir_proxy::observe::access::{JSON, Name};

use super::markdown::tables_of;
use super::read;

#[test]
fn every_name_of_the_access_log_is_in_its_page() {
    let page = read("docs/access-log.md");
    let mut told: Vec<Vec<String>> = tables_of(&page, &["name", "what it says"]).concat();
    let fields = told.pop().expect("rows");
    assert_eq!(fields[0], "`$http_NAME`");
    let known: Vec<Vec<String>> = Name::ALL
        .iter()
        .map(|(_, word, help)| vec![format!("`${word}`"), (*help).to_owned()])
        .collect();
    assert_eq!(told, known);
}

#[test]
fn the_page_says_what_json_lacks() {
    let page = read("docs/access-log.md").replace('\n', " ");
    let (_, lacking) = page.split_once("all but ").expect("what JSON lacks");
    let (lacking, _) = lacking.split_once(", and of the fields").expect("and what it has");
    let told: Vec<&str> =
        lacking.split(['$', ',', ' ']).filter(|word| !word.is_empty() && *word != "and").collect();
    let real: Vec<&str> =
        Name::ALL.iter().map(|(_, word, _)| *word).filter(|word| !JSON.contains(word)).collect();
    assert_eq!(told, real);
}
