//! Faults of a kernel's code: what a GPU reports as an illegal address would end the process here.

use crate::bridge::IN_KERNEL;
use crate::codes::{ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::fibers::{RUNNER, abandoned, fail_current, translated};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

static mut OLD: [std::mem::MaybeUninit<libc::sigaction>; 3] = [const { std::mem::MaybeUninit::uninit() }; 3];
const SIGNALS: [c_int; 3] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE];

/// Takes the signals; once for the process.
pub fn install() {
    for (i, signal) in SIGNALS.iter().enumerate() {
        // SAFETY: the handler is kept for the life of the process; the old ones are kept to be called.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let old = &raw mut OLD;
            libc::sigaction(*signal, &action, (*old)[i].as_mut_ptr());
        }
    }
}

/// A fault in a kernel: a device address that was loaded from memory is put right in the registers, and the access is
/// tried again; anything else ends the kernel. Faults elsewhere are passed on.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives valid pointers; in a kernel this thread holds the driver's lock.
    unsafe {
        let own = libc::pthread_self() as usize == RUNNER.load(Ordering::Relaxed);
        if !IN_KERNEL.load(Ordering::Relaxed) || !own {
            let old = &raw const OLD;
            let i = SIGNALS.iter().position(|s| *s == signal).unwrap_or(0);
            let action = (*old)[i].assume_init_ref();
            match action.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => drop(libc::signal(signal, libc::SIG_DFL)),
                handler if action.sa_flags & libc::SA_SIGINFO != 0 => {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
                    handler(signal, info, context);
                }
                handler => {
                    let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
            return;
        }
        let registers = &mut (*(context as *mut libc::ucontext_t)).uc_mcontext.gregs;
        // An address of this kind gives SIGBUS where it stands in RBP, SIGSEGV elsewhere.
        if signal != libc::SIGFPE {
            let mut changed = false;
            for register in &mut registers[..libc::REG_RSP as usize] {
                if let Some(host) = translated(*register as usize) {
                    *register = host as i64;
                    changed = true;
                }
            }
            if changed {
                return;
            }
        }
        let message = match signal {
            libc::SIGFPE => "divides an integer by zero".to_owned(),
            _ => format!("follows a pointer to nowhere ({:#x})", (*info).si_addr() as usize),
        };
        let code = if signal == libc::SIGFPE { LAUNCH_FAILED } else { ILLEGAL_ADDRESS };
        let top = fail_current(code, &message);
        registers[libc::REG_RSP as usize] = (top - 264) as i64;
        registers[libc::REG_RIP as usize] = abandoned as *const () as usize as i64;
    }
}
