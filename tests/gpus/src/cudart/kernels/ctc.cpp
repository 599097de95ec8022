// CTCLoss. Graves, Fernandez, Gomez and Schmidhuber: Connectionist Temporal Classification (ICML 2006), in
// logarithms.
//
// A sequence's labels stand between blanks: S = 2 L + 1 of them. Its paths have log probabilities alpha (T,
// S) up to a time and beta (T, S) from a time on; both contain that time's own.
#include <cmath>
#include <limits>

#include "arguments.h"

namespace gpus {
namespace {

constexpr float IMPOSSIBLE = -std::numeric_limits<float>::infinity();

float log_of_sum(float a, float b) {
  if (a == IMPOSSIBLE) return b;
  if (b == IMPOSSIBLE) return a;
  return std::log1p(std::exp(-std::fabs(a - b))) + std::max(a, b);
}

// prepare_stable_LSM_kernel(identity, log probabilities, largest, columns, count), and
// compute_log_probs_kernel, whose numbers of rows are sums of exponentials
template <bool logarithms> Work subtract(const Launch& launch) {
  int columns = launch.value<int>(3), count = launch.value<int>(4);
  if (launch.parameter(1).word != "float") return {};
  auto *scores = launch.array<float>(1, count), *of_rows = launch.array<float>(2, count / columns);
  return each(count, [=](long i) {
    float number = of_rows[i / columns];
    scores[i] -= logarithms ? std::log(number) : number;
  });
}

// What both kernels of paths are given, a sequence for each block of the grid.
struct Batch {
  const float* log_probabilities;  // (T, sequences, alphabet)
  const int *label_counts, *lengths, *repeats;
  int sequences, alphabet, most_places, most_times, blank;

  Batch(const Launch& launch, int numbers)
      : log_probabilities(array<float>(launch, 0)),
        label_counts(array<int>(launch, 1)),
        lengths(array<int>(launch, 2)),
        repeats(array<int>(launch, 3)),
        sequences(launch.value<int>(numbers)),
        alphabet(launch.value<int>(numbers + 1)),
        most_places(launch.value<int>(numbers + 2)),
        most_times(launch.value<int>(numbers + 3)),
        blank(launch.value<int>(numbers + 4)) {}

  template <class T> static T* array(const Launch& launch, int place) { return launch.array<T>(place); }
  bool fits(int sequence) const { return label_counts[sequence] + repeats[sequence] <= lengths[sequence]; }
  long alphas_of(int sequence) const { return static_cast<long>(sequence) * most_places * most_times; }
  float at(int sequence, int time, int label) const {
    return log_probabilities[(static_cast<long>(time) * sequences + sequence) * alphabet + label];
  }
};

// Where a path may end, and by symmetry begin: with the last label or the blank behind it; where there is no
// time to spare, with the label alone.
float sum_of_ends(const float* paths, const Batch& batch, int sequence, bool first) {
  int labels = batch.label_counts[sequence], places = 2 * labels + 1;
  bool spare = labels + batch.repeats[sequence] < batch.lengths[sequence];
  float sum = IMPOSSIBLE;
  for (int from_end = spare || labels == 0 ? 0 : 1; from_end < std::min(2, places); from_end++)
    sum = log_of_sum(sum, paths[first ? from_end : places - 1 - from_end]);
  return sum;
}

// One step of paths, in the direction in which `neighbor` and `next but one` lie behind a place.
float step(const float* old, const int* labels, int place, int neighbor, int next, int places, int blank) {
  float sum = old[place];
  if (neighbor >= 0 && neighbor < places) sum = log_of_sum(sum, old[neighbor]);
  bool skips = next >= 0 && next < places && labels[place] != blank && labels[place] != labels[next];
  return skips ? log_of_sum(sum, old[next]) : sum;
}

// compute_alpha_kernel(log probabilities, label counts, lengths, repeats, labels, where a sequence's begin,
// labels with blanks, alphas, losses, sequences, alphabet, most places, most times, blank)
Work alphas(const Launch& launch) {
  if (launch.parameter(0).word != "float") return {};
  Batch batch(launch, 9);
  auto *given = Batch::array<int>(launch, 4), *begins = Batch::array<int>(launch, 5);
  auto* with_blanks = Batch::array<int>(launch, 6);
  auto *all = Batch::array<float>(launch, 7), *losses = Batch::array<float>(launch, 8);
  return each(launch.grid.x, [=](long sequence) {
    if (!batch.fits(sequence)) return;
    int count = batch.label_counts[sequence], places = 2 * count + 1;
    int* labels = with_blanks + sequence * batch.most_places;
    std::fill(labels, labels + places, batch.blank);
    for (int i = 0; i < count; i++) labels[2 * i + 1] = given[begins[sequence] + i];
    float* alpha = all + batch.alphas_of(sequence);
    std::fill(alpha, alpha + places, IMPOSSIBLE);
    bool spare = count + batch.repeats[sequence] < batch.lengths[sequence];
    for (int i = spare ? 0 : 1; i < std::min(2, places); i++) alpha[i] = batch.at(sequence, 0, labels[i]);
    for (int time = 1; time < batch.lengths[sequence]; time++, alpha += places)
      for (int i = 0; i < places; i++)
        alpha[places + i] =
            step(alpha, labels, i, i - 1, i - 2, places, batch.blank) + batch.at(sequence, time, labels[i]);
    losses[sequence] = -sum_of_ends(alpha, batch, sequence, false);
  });
}

// The gradient at one time: probabilities, less what paths through each label have of the whole.
void slopes(const Batch& batch, int sequence, int time, const int* labels, const std::vector<float>& paths, float whole,
            float* gradient) {
  std::vector<float> through(batch.alphabet, IMPOSSIBLE);
  for (size_t i = 0; i < paths.size(); i++) through[labels[i]] = log_of_sum(through[labels[i]], paths[i]);
  for (int label = 0; label < batch.alphabet; label++) {
    float own = batch.at(sequence, time, label);
    bool none = through[label] == IMPOSSIBLE || through[label] == 0 || own == IMPOSSIBLE;
    gradient[label] = std::exp(own) - (none ? 0 : std::exp(through[label] - own - whole));
  }
}

// compute_betas_and_grad_kernel(log probabilities, label counts, lengths, repeats, labels with blanks,
// alphas, losses, losses backwards, gradient, sequences, alphabet, most places, most times, blank)
Work betas_and_gradient(const Launch& launch) {
  if (launch.parameter(0).word != "float") return {};
  Batch batch(launch, 9);
  auto* with_blanks = Batch::array<int>(launch, 4);
  auto *all = Batch::array<float>(launch, 5), *losses = Batch::array<float>(launch, 6),
       *backwards = Batch::array<float>(launch, 7), *gradient = Batch::array<float>(launch, 8);
  return each(launch.grid.x, [=](long sequence) {
    if (!batch.fits(sequence)) return;
    int count = batch.label_counts[sequence], places = 2 * count + 1, last = batch.lengths[sequence] - 1;
    const int* labels = with_blanks + sequence * batch.most_places;
    const float* alpha = all + batch.alphas_of(sequence);
    bool spare = count + batch.repeats[sequence] <= last;
    std::vector<float> beta(places, IMPOSSIBLE), next(places), paths(places);
    for (int i = spare || count == 0 ? 0 : 1; i < std::min(2, places); i++)
      beta[places - 1 - i] = batch.at(sequence, last, labels[places - 1 - i]);
    for (int time = last; time >= 0; time--) {
      for (int i = 0; time < last && i < places; i++)
        next[i] = step(beta.data(), labels, i, i + 1, i + 2, places, batch.blank) + batch.at(sequence, time, labels[i]);
      if (time < last) beta.swap(next);
      for (int i = 0; i < places; i++) paths[i] = alpha[static_cast<long>(time) * places + i] + beta[i];
      slopes(batch, sequence, time, labels, paths, -losses[sequence],
             gradient + (static_cast<long>(time) * batch.sequences + sequence) * batch.alphabet);
    }
    backwards[sequence] = -sum_of_ends(beta.data(), batch, sequence, true);
  });
}

const Registered registered{{"prepare_stable_LSM_kernel", subtract<false>},
                            {"compute_log_probs_kernel", subtract<true>},
                            {"compute_alpha_kernel", alphas},
                            {"compute_betas_and_grad_kernel", betas_and_gradient}};

}  // namespace
}  // namespace gpus
