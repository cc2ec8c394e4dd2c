// Fibers on ucontext, for systems without Boost.Context. Each switch saves the signal mask by a system call.
#include <ucontext.h>

#include <cstdint>

#include "csrc/emu/fiber.h"
#include "csrc/emu/stack_pool.h"

namespace cudaprefill::emu {

struct Fiber::State {
  std::function<void()> entry;
  ucontext_t context;
  ucontext_t resumer;
  void* stack = nullptr;

  ~State() {
    if (stack) StackPool::local().give_back(stack);
  }

  // makecontext() passes ints only, so the pointer travels in two halves.
  static void run(unsigned high, unsigned low) {
    auto* state = reinterpret_cast<State*>((static_cast<uintptr_t>(high) << 32) | low);
    state->entry();
    setcontext(&state->resumer);
  }
};

Fiber::Fiber(std::function<void()> entry) : state_(std::make_unique<State>()) {
  state_->entry = std::move(entry);
  state_->stack = StackPool::local().take();
  getcontext(&state_->context);
  state_->context.uc_stack.ss_sp = state_->stack;
  state_->context.uc_stack.ss_size = StackPool::kStackBytes;
  const auto address = reinterpret_cast<uintptr_t>(state_.get());
  makecontext(&state_->context, reinterpret_cast<void (*)()>(&State::run), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
}

Fiber::~Fiber() = default;
Fiber::Fiber(Fiber&&) noexcept = default;
Fiber& Fiber::operator=(Fiber&&) noexcept = default;

void Fiber::resume() { swapcontext(&state_->resumer, &state_->context); }
void Fiber::suspend() { swapcontext(&state_->context, &state_->resumer); }

}  // namespace cudaprefill::emu
