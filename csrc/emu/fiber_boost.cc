// Fibers on Boost.Context: a switch saves a handful of registers and makes no system call.
#include <boost/context/fiber.hpp>

#include "csrc/emu/fiber.h"
#include "csrc/emu/stack_pool.h"

namespace cudaprefill::emu {
namespace {

// Boost's StackAllocator concept over the pool.
struct PooledStack {
  boost::context::stack_context allocate() {
    boost::context::stack_context stack;
    stack.size = StackPool::kStackBytes;
    stack.sp = static_cast<char*>(StackPool::local().take()) + stack.size;
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) noexcept {
    StackPool::local().give_back(static_cast<char*>(stack.sp) - stack.size);
  }
};

}  // namespace

struct Fiber::State {
  std::function<void()> entry;
  boost::context::fiber fiber;
  boost::context::fiber resumer;
};

Fiber::Fiber(std::function<void()> entry) : state_(std::make_unique<State>()) {
  state_->entry = std::move(entry);
  state_->fiber =
      boost::context::fiber(std::allocator_arg, PooledStack(), [state = state_.get()](boost::context::fiber&& resumer) {
        state->resumer = std::move(resumer);
        state->entry();
        return std::move(state->resumer);
      });
}

Fiber::~Fiber() = default;
Fiber::Fiber(Fiber&&) noexcept = default;
Fiber& Fiber::operator=(Fiber&&) noexcept = default;

void Fiber::resume() { state_->fiber = std::move(state_->fiber).resume(); }
void Fiber::suspend() { state_->resumer = std::move(state_->resumer).resume(); }

}  // namespace cudaprefill::emu
