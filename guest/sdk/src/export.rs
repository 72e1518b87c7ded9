//! The macro [`export_policy!`](crate::export_policy), which turns a type into the policy of its
//! crate.

/// Makes a type the policy of its crate.
///
/// - `export_policy!(Heft)`: a [`Policy`](crate::Policy) that places whole graphs.
/// - `export_policy!(RoundRobin, online)`: an [`OnlinePolicy`](crate::OnlinePolicy) that does both.
/// - `export_policy!(Stealing, online_only)`: a policy that only places ops while they run.
///
/// Built for wasm32, the macro exports the functions of the contract, keeps one instance of the
/// policy, forwards panic messages to the host's log, and writes the contract's version to the
/// custom section `placewright:sdk`. Built natively, it defines
/// `pub fn native() -> Box<dyn NativePolicy>`, which returns a fresh instance of the same policy
/// for hosts and tests. Use it once per crate.
///
/// # Policies that other policies depend on
///
/// A wasm module exports each function once, so only one crate of a dependency graph can export
/// its policy. A crate that other policies may depend on therefore names a cargo feature, as the
/// last argument, that controls its wasm exports:
///
/// ```ignore
/// export_policy!(Heft, feature = "export");
/// ```
///
/// ```toml
/// [features]
/// default = ["export"]
/// export = [] # the wasm exports; a policy that depends on this crate turns them off
/// ```
///
/// A feature that `Cargo.toml` does not declare is an error:
///
/// ```compile_fail
/// # use placewright_guest::{Policy, export_policy};
/// # #[derive(Default)]
/// # struct Mine;
/// # impl Policy for Mine {
/// #     const NAME: &'static str = "mine";
/// # }
/// export_policy!(Mine, feature = "undeclared");
/// ```
///
/// The other policy turns the feature off and exports itself:
///
/// ```toml
/// [dependencies]
/// policy-heft = { path = "..", default-features = false }
/// ```
///
/// `native()` is defined with and without the feature. [`crate::wrap`] runs one policy inside
/// another.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty $(, feature = $feature:literal)?) => {
        $crate::export_policy!(@native $policy, whole_graph);
        $($crate::export_policy!(@declared $feature);)?
        $(#[cfg(feature = $feature)])?
        $crate::export_policy!(@wasm $policy, export_lifecycle, export_whole_graph);
    };
    ($policy:ty, online $(, feature = $feature:literal)?) => {
        $crate::export_policy!(@native $policy, online);
        $($crate::export_policy!(@declared $feature);)?
        $(#[cfg(feature = $feature)])?
        $crate::export_policy!(@wasm $policy, export_lifecycle, export_whole_graph, export_online);
    };
    ($policy:ty, online_only $(, feature = $feature:literal)?) => {
        $crate::export_policy!(@native $policy, online);
        $($crate::export_policy!(@declared $feature);)?
        $(#[cfg(feature = $feature)])?
        $crate::export_policy!(@wasm $policy, export_lifecycle, export_online);
    };
    (@declared $feature:literal) => {
        // Without this error the feature would be off, and the module without exports.
        #[deny(unexpected_cfgs)]
        const _: () = {
            #[cfg(feature = $feature)]
            const _: () = ();
        };
    };
    (@native $policy:ty, $kind:ident) => {
        /// Returns a fresh instance of this crate's policy, built natively.
        #[cfg(not(target_arch = "wasm32"))]
        pub fn native() -> ::std::boxed::Box<dyn $crate::native::NativePolicy> {
            $crate::native::$kind::<$policy>(::std::env!("CARGO_PKG_VERSION"))
        }
    };
    (@wasm $policy:ty, $($export:ident),+) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Exports;

            ::std::thread_local! {
                static POLICY: ::std::cell::RefCell<::std::option::Option<$policy>> =
                    const { ::std::cell::RefCell::new(::std::option::Option::None) };
            }

            impl $crate::wasm::Exported for Exports {
                type Policy = $policy;
                const VERSION: &'static str = ::std::env!("CARGO_PKG_VERSION");

                fn with<R>(call: impl ::std::ops::FnOnce(&mut $policy) -> R) -> R {
                    POLICY.with_borrow_mut(|policy| {
                        call(policy.get_or_insert_with(|| {
                            $crate::wasm::forward_panics();
                            ::std::default::Default::default()
                        }))
                    })
                }
            }

            #[unsafe(link_section = "placewright:sdk")]
            #[used]
            static CONTRACT: [u8; $crate::CONTRACT_VERSION.len()] =
                $crate::wasm::CONTRACT_VERSION_BYTES;

            $($crate::wasm::$export!(Exports with_types_in $crate::wasm::bindings::$export);)+
        };
    };
}
