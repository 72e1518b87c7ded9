//! The policy's part of a placement's identity: which policy, and how it is asked.

use super::form::CONTRACT_VERSION;
use super::ladder::PolicyRequest;
use super::limits::PolicyLimits;
use crate::candidates::Candidates;
use crate::placement::Digest;
use crate::placement::DigestWriter;

/// `wasm`: of the policy's bytes.
pub(super) fn policy_digest(
    wasm: &Digest,
    request: &PolicyRequest,
    limits: &PolicyLimits,
    candidates: &Candidates,
) -> Digest {
    let mut writer = DigestWriter::new("placewright policy 1");
    // What fuel buys depends on what the host charges for, and on the compiler.
    writer.text(env!("CARGO_PKG_VERSION"));
    writer.text(&CONTRACT_VERSION.to_string());
    writer.bytes(wasm.as_bytes());
    writer.list(&request.config, |writer, (key, value)| {
        writer.text(key);
        writer.text(value);
    });
    writer.u64(request.options.seed);
    writer.flag(request.options.explain_wanted);
    // Policies see it, and it does not depend on the graph.
    writer.text(candidates.graph().name());
    write_limits(&mut writer, limits);
    writer.finish()
}

/// All of them, by name, so that one that is added is not forgotten.
fn write_limits(writer: &mut DigestWriter, limits: &PolicyLimits) {
    let PolicyLimits {
        wasm_bytes,
        functions,
        // What is compiled at all is compiled to the same code.
        parts: _,
        nesting: _,
        nested_types: _,
        items: _,
        lowered_functions: _,
        function_effort: _,
        effort: _,
        compile_deadline: _,
        compile_memory_bytes: _,
        memory_bytes,
        table_elements,
        instances,
        tables,
        memories,
        stack_bytes,
        hostcall_bytes,
        component_handles,
        place_deadline,
        pick_deadline: _,
        configure_deadline,
        fuel,
        log_messages,
        log_message_bytes,
        log_level,
        explanation_bytes,
        metrics,
        settings: _,
    } = limits;
    let sizes = [
        wasm_bytes,
        functions,
        memory_bytes,
        table_elements,
        instances,
        tables,
        memories,
        stack_bytes,
        hostcall_bytes,
        component_handles,
        log_messages,
        log_message_bytes,
        explanation_bytes,
        metrics,
    ];
    for size in sizes {
        writer.u64(*size as u64);
    }
    writer.u32(*log_level as u32);
    writer.option(*fuel, DigestWriter::u64);
    // With fuel, deadlines are off.
    if fuel.is_none() {
        for deadline in [place_deadline, configure_deadline] {
            writer.u64(deadline.as_secs());
            writer.u32(deadline.subsec_nanos());
        }
    }
}
