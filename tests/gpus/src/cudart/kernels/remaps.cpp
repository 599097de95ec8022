#include "remaps.h"

#include <map>

namespace gpus {
namespace {

int number(const Type& type, int argument) { return atoi(type.arguments[argument].word.c_str()); }

void slice_columns(const int* p, int&, int& column) { column += p[0]; }

void slice(const int* p, int& row, int&) {  // height, first channel, channels of the source, channels
  int y = row % p[0], rest = row / p[0];
  row = ((rest / p[3]) * p[2] + rest % p[3] + p[1]) * p[0] + y;
}

void reshape(const int* p, int& row, int& column) {  // last extents: here, in the source
  int place = row * p[0] + column;
  row = place / p[1];
  column = place % p[1];
}

void reshape_line(const int* p, int& row, int& column) {
  column += row * p[0];
  row = 0;
}

template <int N>
void transpose(const int* p, int& row, int& column) {  // the source's stride, strides in the source, shape
  const int *strides = p + 1, *shape = p + 1 + N;
  int place = column * strides[N - 1];
  for (int axis = N - 2; axis >= 0; axis--) {
    place += row % shape[axis] * strides[axis];
    row /= shape[axis];
  }
  row = place / p[0];
  column = place % p[0];
}

void swap_rows(const int* p, int& row, int&) {  // extents y, z, c, n: z and n change places
  int y = row % p[0], rest = row / p[0];
  int z = rest % p[1];
  rest /= p[1];
  int c = rest % p[2];
  rest /= p[2];
  row = ((((rest / p[3]) * p[1] + z) * p[2] + c) * p[3] + rest % p[3]) * p[0] + y;
}

void swap_columns(const int* p, int& row, int& column) {  // extents x, y, z: x and z change places
  int y = row % p[1], rest = row / p[1];
  int z = rest % p[2];
  row = ((rest / p[2]) * p[0] + column) * p[1] + y;
  column = z;
}

void broadcast_line(const int*, int& row, int&) { row = 0; }

void broadcast_rows(const int* p, int& row, int& column) {  // rows between elements, elements
  column = row / p[0] % p[1];
  row = 0;
}

void broadcast_number(const int*, int& row, int& column) { row = column = 0; }

void broadcast_axis(const int* p, int& row,
                    int& column) {  // last extent, extents behind the axis, of it, source's last
  int place = row * p[0] + column;
  int source = place / p[1] / p[2] * p[1] + place % p[1];
  row = source / p[3];
  column = source % p[3];
}

template <int N>
void broadcast_axes(const int* p, int& row,
                    int& column) {  // last extent, source's last, how many axes; extents as above
  int place = row * p[0] + column;
  for (int axis = 0; axis < std::min(N, p[2]); axis++)
    place = place / p[3 + axis] / p[3 + N + axis] * p[3 + axis] + place % p[3 + axis];
  row = place / p[1];
  column = place % p[1];
}

void pad(const int* p, int& row,
         int& column) {  // rows and columns before, new height, source's height and width
  int y = row % p[2] - p[0], x = column - p[1];
  bool inside = y >= 0 && x >= 0 && y < p[3] && x < p[4];
  row = inside ? row / p[2] * p[3] + y : NOWHERE;
  column = x;
}

void crop(const int* p, int& row, int& column) {  // rows and columns before, new height, source's height
  row = row / p[2] * p[3] + row % p[2] + p[0];
  column += p[1];
}

void upsample(const int* p, int& row, int& column) {  // scale, new height, source's height
  row = row / p[1] * p[2] + row % p[1] / p[0];
  column /= p[0];
}

Remap transpose_of(int axes) {
  static constexpr Remap choices[] = {nullptr,      transpose<1>, transpose<2>, transpose<3>,
                                      transpose<4>, transpose<5>, transpose<6>};
  return axes < 7 ? choices[axes] : nullptr;
}

Remap broadcast_of(int axes) {
  static constexpr Remap choices[] = {nullptr,           broadcast_axes<1>, broadcast_axes<2>,
                                      broadcast_axes<3>, broadcast_axes<4>, broadcast_axes<5>};
  return axes < 6 ? choices[axes] : nullptr;
}

// Those that only move elements, or say where they lie; `remap` nullptr: it is none of the first.
Form remapping(const Type& type) {
  const std::string& word = type.word;
  if (word == "SliceExp") return number(type, 4) == 1 ? Form{{0}, 1, slice_columns} : Form{{0}, 4, slice};
  if (word == "ReshapeExp") return number(type, 3) == 1 ? Form{{0}, 1, reshape_line} : Form{{0}, 2, reshape};
  if (word == "TransposeExExp") return {{0}, 1 + 2 * number(type, 2), transpose_of(number(type, 2))};
  if (word == "SwapAxisExp") return number(type, 3) == 1 ? Form{{0}, 3, swap_columns} : Form{{0}, 4, swap_rows};
  if (word == "Broadcast1DExp")
    return number(type, 3) == 1 ? Form{{0}, 0, broadcast_line} : Form{{0}, 2, broadcast_rows};
  if (word == "BroadcastScalarExp") return {{0}, 0, broadcast_number};
  if (word == "BroadcastWithAxisExp") return {{0}, 4, broadcast_axis};
  if (word == "BroadcastWithMultiAxesExp") return {{0}, 3 + 2 * number(type, 2), broadcast_of(number(type, 2))};
  if (word == "PaddingExp") return {{0}, 5, pad};
  if (word == "CroppingExp") return {{0}, 4, crop};
  if (word == "UpSamplingNearestExp") return {{0}, 3, upsample};
  if (word == "TransposeIndicesExp") return {{0}, 2 * number(type, 2), nullptr};
  return {{}, 0, nullptr};
}

}  // namespace

// The plans in a plan, as its template arguments.
Form form_of(const Type& type) {
  static const auto& others = *new std::map<std::string, Form>{
      {"TypecastExp", {{2}, 0, nullptr}},
      {"UnaryMapExp", {{1}, 0, nullptr}},
      {"BinaryMapExp", {{1, 2}, 0, nullptr}},
      {"MakeTensorExp", {{0}, 0, nullptr}},
      {"ReduceWithAxisExp", {{1}, 4, nullptr}},
      {"PoolingExp", {{1}, 7, nullptr}},
      {"MatChooseRowElementExp", {{0, 1}, 0, nullptr}},
      {"MatFillRowElementExp", {{0, 1, 2}, 0, nullptr}},
      {"OneHotEncodeExp", {{0}, 0, nullptr}},
  };
  auto found = others.find(type.word);
  return found == others.end() ? remapping(type) : found->second;
}

size_t alignment(const Type& type) {
  if (type.word == "Tensor") return 8;
  if (type.word == "ScalarExp") return size_of(type.arguments[0]);
  if (type.word == "RangeExp") return std::max<size_t>(size_of(type.arguments[0]), 4);
  Form form = form_of(type);
  size_t most = form.numbers ? 4 : 1;
  for (int source : form.sources) most = std::max(most, alignment(type.arguments[source]));
  return most;
}

// The type of a plan's elements, by its name.
const Type& element_type(const Type& type) {
  const std::string& word = type.word;
  if (word == "Tensor") return type.arguments[2];
  if (word == "BinaryMapExp") return type.arguments[3];
  if (word == "UnaryMapExp" || word == "SliceExp" || word == "ReduceWithAxisExp" || word == "PoolingExp" ||
      word == "MatChooseRowElementExp")
    return type.arguments[2];
  if (word == "MakeTensorExp" || word == "MatFillRowElementExp") return type.arguments[3];
  if (word == "ScalarExp" || word == "RangeExp" || word == "TypecastExp") return type.arguments[0];
  return type.arguments[1];
}

}  // namespace gpus
