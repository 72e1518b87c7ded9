//! Folders passed as graphs.

use std::fs;

use super::args;
use super::folder;
use super::placewright;

#[test]
fn a_saved_model_is_recognized_and_a_folder_is_reported_as_one() {
    let folder = folder();
    let saved_model = folder.path().join("my_model");
    fs::create_dir_all(saved_model.join("variables")).expect("made");
    fs::write(saved_model.join("saved_model.pb"), b"\x08\x01").expect("written");
    let file = saved_model.join("saved_model.pb");
    let plain = folder.path().to_str().expect("UTF-8");
    for path in [&saved_model, &file] {
        let path = path.to_str().expect("UTF-8");
        for line in [
            "run {}",
            "place {}",
            "place {} --check-ops",
            "bench models {}",
        ] {
            let parts = [path, "not supported yet: SavedModel", "freeze", "frozen.pb"];
            placewright(args(line, &[path])).expect_error(1, &parts);
        }
    }
    for line in ["run {}", "place {}", "place {} --check-ops"] {
        let parts = [plain, "is a folder", "frozen GraphDef"];
        placewright(args(line, &[plain])).expect_error(1, &parts);
    }
}
