// What knows one half of a matrix: symmetric updates, products and equations of triangles;
// and the product of two vectors.
#include <memory>

#include "multiply.h"
#include "scalars.h"

using namespace gpus;

namespace {

// Element (row, column) of op(A), of which one half is there.
template <class T> struct Triangle {
  const T* first;
  int leading;
  bool upper, transposed, unit;

  T at(int row, int column) const {
    if (transposed) std::swap(row, column);
    if (row == column && unit) return 1;
    if (row != column && (row < column) != upper) return 0;
    return first[size_t(column) * leading + row];
  }
};

// C = alpha op(A) op(A)^T + beta C, in one half of C.
template <class T>
cublasStatus_t update(const char* name, cublasHandle_t handle, cublasFillMode_t half_of, cublasOperation_t operation,
                      int n, int k, const T* alpha, const T* a, int lda, const T* beta, T* c, int ldc) {
  Call call(name, blas(handle));
  bool plain = operation == CUBLAS_OP_N;
  call.reaches(a, plain ? extent<T>(n, k, lda) : extent<T>(k, n, lda));
  call.reaches(c, extent<T>(n, n, ldc));
  Scalar<T> scale(call, blas(handle), alpha), keep(call, blas(handle), beta);
  Matrix<T> rows = plain ? Matrix<T>{a, 1, lda} : Matrix<T>{a, lda, 1};
  call.does([=] {
    std::unique_ptr<T[]> sums(new T[size_t(n) * n]);
    multiply(n, n, k, rows, transposed(rows), sums.get());
    for (int column = 0; column < n; column++)
      for (int row = 0; row < n; row++) {
        if (row != column && (row < column) != (half_of == CUBLAS_FILL_MODE_UPPER)) continue;
        T& out = c[size_t(column) * ldc + row];
        T sum = scale.value() * sums[size_t(row) * n + column];
        out = keep.value() == 0 ? sum : sum + keep.value() * out;
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}

// For each row of B, or each column: a vector of `length` elements, `step` apart;
// `line` from one to the next.
struct Lines {
  int length, lines;
  size_t step, line;
};

Lines lines_of(cublasSideMode_t side, int m, int n, int leading) {
  return side == CUBLAS_SIDE_LEFT ? Lines{m, n, 1, size_t(leading)} : Lines{n, m, size_t(leading), 1};
}

// From the right, x op(A) is op(A)^T x: the same for the line x.
template <class T>
Triangle<T> triangle(cublasSideMode_t side, cublasFillMode_t half_of, cublasOperation_t operation,
                     cublasDiagType_t diagonal, const T* a, int lda) {
  bool transposed = (operation != CUBLAS_OP_N) != (side == CUBLAS_SIDE_RIGHT);
  return {a, lda, half_of == CUBLAS_FILL_MODE_UPPER, transposed, diagonal == CUBLAS_DIAG_UNIT};
}

// C = alpha op(A) B, or alpha B op(A). C may be B.
template <class T>
cublasStatus_t multiply_triangle(const char* name, cublasHandle_t handle, cublasSideMode_t side, Triangle<T> a, int m,
                                 int n, const T* alpha, const T* b, int ldb, T* c, int ldc) {
  Call call(name, blas(handle));
  Lines in = lines_of(side, m, n, ldb), out = lines_of(side, m, n, ldc);
  call.reaches(a.first, extent<T>(in.length, in.length, a.leading));
  call.reaches(b, extent<T>(m, n, ldb));
  call.reaches(c, extent<T>(m, n, ldc));
  Scalar<T> scale(call, blas(handle), alpha);
  call.does([=] {
    std::unique_ptr<T[]> held(new T[in.length]);
    for (int line = 0; line < in.lines; line++) {
      for (int at = 0; at < in.length; at++) held[at] = b[line * in.line + at * in.step];
      for (int row = 0; row < in.length; row++) {
        T sum = 0;
        for (int at = 0; at < in.length; at++) sum += a.at(row, at) * held[at];
        c[line * out.line + row * out.step] = scale.value() * sum;
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

// op(A) X = alpha B, or X op(A) = alpha B; X in the place of B.
template <class T>
cublasStatus_t solve_triangle(const char* name, cublasHandle_t handle, cublasSideMode_t side, Triangle<T> a, int m,
                              int n, const T* alpha, T* b, int ldb) {
  Call call(name, blas(handle));
  Lines lines = lines_of(side, m, n, ldb);
  call.reaches(a.first, extent<T>(lines.length, lines.length, a.leading));
  call.reaches(b, extent<T>(m, n, ldb));
  Scalar<T> scale(call, blas(handle), alpha);
  bool from_below = a.upper != a.transposed;
  call.does([=] {
    for (int line = 0; line < lines.lines; line++) {
      T* x = b + line * lines.line;
      for (int turn = 0; turn < lines.length; turn++) {
        int row = from_below ? lines.length - 1 - turn : turn;
        T rest = scale.value() * x[row * lines.step];
        for (int done = 0; done < turn; done++) {
          int at = from_below ? lines.length - 1 - done : done;
          rest -= a.at(row, at) * x[at * lines.step];
        }
        x[row * lines.step] = rest / a.at(row, row);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t dot(const char* name, cublasHandle_t handle, int n, const T* x, int dx, const T* y, int dy, T* result) {
  Call call(name, blas(handle));
  if (dx < 0 || dy < 0) call.refuse("a vector that goes backwards, which is not there");
  call.reaches(x, extent<T>(1, n, dx));
  call.reaches(y, extent<T>(1, n, dy));
  bool on_gpu = blas(handle).pointers == CUBLAS_POINTER_MODE_DEVICE;
  if (on_gpu)
    call.reaches(result, sizeof(T));
  else
    call.refuse("a place for the result on the host, for which it waits");
  call.does([=] {
    T lanes[256] = {};  // as the threads of a block add, then in pairs: millions of numbers keep their digits
    for (int at = 0; at < n; at++) lanes[at % 256] += x[size_t(at) * dx] * y[size_t(at) * dy];
    for (int half = 128; half; half /= 2) {
      for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    }
    *result = lanes[0];
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// The calls for numbers of one type, whose names have its letter.
#define CALLS(letter, T)                                                                                               \
  cublasStatus_t cublas##letter##syrk_v2(cublasHandle_t handle, cublasFillMode_t half_of, cublasOperation_t operation, \
                                         int n, int k, const T* alpha, const T* a, int lda, const T* beta, T* c,       \
                                         int ldc) {                                                                    \
    return update("cublas" #letter "syrk", handle, half_of, operation, n, k, alpha, a, lda, beta, c, ldc);             \
  }                                                                                                                    \
  cublasStatus_t cublas##letter##trmm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t half_of,       \
                                         cublasOperation_t operation, cublasDiagType_t diagonal, int m, int n,         \
                                         const T* alpha, const T* a, int lda, const T* b, int ldb, T* c, int ldc) {    \
    return multiply_triangle("cublas" #letter "trmm", handle, side,                                                    \
                             triangle(side, half_of, operation, diagonal, a, lda), m, n, alpha, b, ldb, c, ldc);       \
  }                                                                                                                    \
  cublasStatus_t cublas##letter##trsm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t half_of,       \
                                         cublasOperation_t operation, cublasDiagType_t diagonal, int m, int n,         \
                                         const T* alpha, const T* a, int lda, T* b, int ldb) {                         \
    return solve_triangle("cublas" #letter "trsm", handle, side, triangle(side, half_of, operation, diagonal, a, lda), \
                          m, n, alpha, b, ldb);                                                                        \
  }                                                                                                                    \
  cublasStatus_t cublas##letter##dot_v2(cublasHandle_t handle, int n, const T* x, int dx, const T* y, int dy,          \
                                        T* result) {                                                                   \
    return dot("cublas" #letter "dot", handle, n, x, dx, y, dy, result);                                               \
  }

extern "C" {
CALLS(S, float)
CALLS(D, double)
}
