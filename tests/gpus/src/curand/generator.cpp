// libcurand.so.10: numbers from seeds, the same on every device.
#include <curand.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "library.h"

using namespace gpus;

namespace {

// What queued work reads and moves on; it may outlive the generator.
struct State {
  std::mt19937_64 random;

  // Above 0 and at most 1, as cuRAND's are. A float's has 24 bits, so that it never becomes 0.
  template <class T> T uniform() {
    constexpr int bits = std::numeric_limits<T>::digits;
    return T((random() >> (64 - bits)) + 1) * std::ldexp(T(1), -bits);
  }
};

struct Generator : Handle {
  std::shared_ptr<State> state = std::make_shared<State>();
  unsigned long long seed = 0, offset = 0;
};

Generator& cast(curandGenerator_t generator) { return *reinterpret_cast<Generator*>(generator); }

// Begin anew. What is queued goes on with the old numbers.
void seed(Generator& generator) {
  generator.state = std::make_shared<State>();
  generator.state->random.seed(generator.seed);
  generator.state->random.discard(generator.offset);
}

template <class T, class Draw>
curandStatus_t fill(const char* name, curandGenerator_t handle, T* out, size_t number, Draw draw) {
  Generator& generator = cast(handle);
  Call call(name, generator);
  call.reaches(out, number * sizeof(T));
  call.does([state = generator.state, out, number, draw] {
    for (size_t at = 0; at < number; at++) out[at] = draw(*state);
  });
  return CURAND_STATUS_SUCCESS;
}

template <class T>
curandStatus_t fill_normal(const char* name, curandGenerator_t handle, T* out, size_t number, T mean, T deviation) {
  if (number % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;  // cuRAND makes them in pairs
  return fill(name, handle, out, number, [mean, deviation](State& state) {
    T radius = std::sqrt(T(-2) * std::log(state.uniform<T>()));
    return mean + deviation * radius * std::cos(T(2 * M_PI) * state.uniform<T>());
  });
}

}  // namespace

extern "C" {

curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t) {
  auto* made = new Generator;
  seed(*made);
  *generator = reinterpret_cast<curandGenerator_t>(made);
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
  delete &cast(generator);
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) {
  cast(generator).stream = stream;
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long number) {
  cast(generator).seed = number;
  seed(cast(generator));
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset) {
  cast(generator).offset = offset;
  seed(cast(generator));
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerate(curandGenerator_t generator, unsigned* out, size_t number) {
  return fill("curandGenerate", generator, out, number, [](State& state) { return unsigned(state.random() >> 32); });
}

curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* out, size_t number) {
  return fill("curandGenerateUniform", generator, out, number, [](State& state) { return state.uniform<float>(); });
}

curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double* out, size_t number) {
  return fill("curandGenerateUniformDouble", generator, out, number,
              [](State& state) { return state.uniform<double>(); });
}

curandStatus_t curandGenerateNormal(curandGenerator_t generator, float* out, size_t number, float mean,
                                    float deviation) {
  return fill_normal("curandGenerateNormal", generator, out, number, mean, deviation);
}

curandStatus_t curandGenerateNormalDouble(curandGenerator_t generator, double* out, size_t number, double mean,
                                          double deviation) {
  return fill_normal("curandGenerateNormalDouble", generator, out, number, mean, deviation);
}
}
