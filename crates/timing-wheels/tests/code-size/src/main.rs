//! The main methods of `HierarchicalWheel<u32>`, on a processor without an operating system. The
//! loop and the allocator take some hundred bytes.
#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr::{null_mut, read_volatile, write_volatile};
use core::sync::atomic::{AtomicUsize, Ordering};

use timing_wheels::HierarchicalWheel;

/// A register, of which the compiler knows nothing.
const REGISTER: *mut u32 = 0x4000_0000 as *mut u32;

/// Frees nothing.
struct Heap;

static USED: AtomicUsize = AtomicUsize::new(0x2000_0000);

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: no memory is given out twice. There is one thread.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let begin = USED
            .load(Ordering::Relaxed)
            .next_multiple_of(layout.align());
        if begin + layout.size() > 0x2001_0000 {
            return null_mut();
        }
        USED.store(begin + layout.size(), Ordering::Relaxed);
        begin as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

fn read() -> u32 {
    // SAFETY: the device has this register.
    unsafe { read_volatile(REGISTER) }
}

fn write(value: u32) {
    // SAFETY: the device has this register.
    unsafe { write_volatile(REGISTER, value) }
}

#[no_mangle]
extern "C" fn _start() -> ! {
    let mut wheel = HierarchicalWheel::new(64);
    let mut last = wheel.insert(read().into(), read());
    loop {
        match read() {
            0 => last = wheel.insert(read().into(), read()),
            1 => write(wheel.reset(last, read().into()).into()),
            2 => write(wheel.remove(last).unwrap_or(0)),
            3 => write(wheel.next_deadline().unwrap_or(0) as u32),
            _ => {
                let now = read().into();
                while let Some((_, _, value)) = wheel.pop_expired(now) {
                    write(value);
                }
            }
        }
    }
}
