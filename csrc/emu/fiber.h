// A fiber: a function with a stack of its own that can stop in the middle and go on later. One fiber is one CUDA
// thread.
#pragma once

#include <functional>
#include <memory>

namespace cudaprefill::emu {

class Fiber {
 public:
  // `entry` runs at the first resume(). It must not let an exception out.
  explicit Fiber(std::function<void()> entry);
  ~Fiber();
  Fiber(Fiber&&) noexcept;
  Fiber& operator=(Fiber&&) noexcept;

  // Runs the fiber until it suspends or ends.
  void resume();
  // Called inside the fiber: goes back to whoever resumed it.
  void suspend();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cudaprefill::emu
