//! `rendezvous.json`: keys of transfers, written and parsed.

use placewright::names::FrameIteration;
use placewright::names::NameError;
use placewright::names::RendezvousKey;
use serde_json::Value;
use serde_json::json;

use crate::category;
use crate::equal;
use crate::mentions;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let result = match text(case, "op")? {
        "create_key" => create(case)?,
        "parse_key" => RendezvousKey::parse(text(case, "key")?),
        other => return Err(format!("unknown op `{other}`")),
    };
    let expect = &case["expect"];
    if expect["error"].is_object() {
        if let Err(error) = &result {
            category(&expect["error"], error.code().name())?;
        }
        return mentions(result, &expect["error"]);
    }
    let key = result.map_err(|error| error.to_string())?;
    let found = json!({
        "ok": true,
        "key": key.as_str(),
        "src_device": key.source(),
        "src_incarnation": key.source_incarnation().to_string(),
        "dst_device": key.destination(),
        "edge_name": key.edge_name(),
    });
    let expected = expect.as_object().ok_or("case expects nothing")?;
    for (part, expected) in expected {
        equal(part, &found[part], expected)?;
    }
    Ok(())
}

fn create(case: &Value) -> Result<Result<RendezvousKey, NameError>, String> {
    let when = FrameIteration {
        frame_id: number(case, "frame_id")?,
        iteration: number(case, "iter_id")?,
    };
    Ok(RendezvousKey::new(
        text(case, "src_device")?,
        number(case, "src_incarnation")?,
        text(case, "dst_device")?,
        text(case, "edge_name")?,
        when,
    ))
}

/// Returns a number of a case; 64-bit numbers are strings.
fn number<T: std::str::FromStr>(case: &Value, key: &str) -> Result<T, String> {
    let number = match &case[key] {
        Value::String(text) => text.parse().ok(),
        other => other.to_string().parse().ok(),
    };
    number.ok_or_else(|| format!("case has no number `{key}`"))
}
