//! Proves: the objects that weir carries match their sources. How: they are compiled again and
//! compared; where clang 14, the version of Debian 12, is missing, the test says so and ends.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn objects_are_those_of_their_sources() {
    if Command::new("clang-14").arg("--version").output().is_err() {
        eprintln!("not tested: there is no clang-14");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let anew = Path::new(env!("CARGO_TARGET_TMPDIR")).join("objects");
    fs::create_dir_all(&anew).expect("a folder");
    let done = Command::new(folder.join("compile")).arg(&anew).status().expect("it starts");
    assert!(done.success());
    let mut compared = 0;
    for entry in
        fs::read_dir(&folder).expect("readable").map(|entry| entry.expect("an entry").path())
    {
        if entry.extension().is_some_and(|it| it == "o") {
            let name = entry.file_name().expect("a name");
            let same = fs::read(&entry).expect("committed")
                == fs::read(anew.join(name)).expect("made anew");
            assert!(
                same,
                "{} is not what its source becomes: run crates/weir-bpf/bpf/compile",
                name.display()
            );
            compared += 1;
        }
    }
    assert!(compared > 0);
}
