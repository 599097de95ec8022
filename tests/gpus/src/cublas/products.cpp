// Products of matrices: C = alpha op(A) op(B) + beta C, of which columns follow each other,
// one or many at equal distances.
#include <memory>

#include "multiply.h"
#include "scalars.h"

namespace gpus {  // CUDA has a type `half` of its own outside
namespace {

struct Shape {
  cublasOperation_t a, b;
  int m, n, k;
};

template <class T> struct Factor {
  const void* first;
  int leading;
  long long distance = 0;  // to the next of a batch

  Matrix<T> matrix(cublasOperation_t operation, int place) const {
    const T* begin = static_cast<const T*>(first) + place * distance;
    return operation == CUBLAS_OP_N ? Matrix<T>{begin, 1, leading} : Matrix<T>{begin, leading, 1};
  }

  size_t bytes(cublasOperation_t operation, size_t rows, size_t columns, int batch) const {
    if (operation != CUBLAS_OP_N) std::swap(rows, columns);
    size_t one = extent<T>(rows, columns, leading);
    return one ? one + (batch - 1) * distance * sizeof(T) : 0;
  }
};

template <class T, class Out, class S>
void add_product(const Shape& shape, Matrix<T> a, Matrix<T> b, Out* c, int leading, S alpha, S beta, Arithmetic how) {
  using C = Computed<Out>;
  std::unique_ptr<Computed<T>[]> sums(new Computed<T>[size_t(shape.m) * shape.n]);
  multiply(shape.n, shape.m, shape.k, transposed(b), transposed(a), sums.get(), how);
  for (int column = 0; column < shape.n; column++) {
    const Computed<T>* sum = sums.get() + size_t(column) * shape.m;
    Out* out = c + size_t(column) * leading;
    for (int row = 0; row < shape.m; row++)
      out[row] = static_cast<Out>(beta == 0 ? C(alpha * sum[row]) : C(alpha * sum[row]) + C(beta * C(out[row])));
  }
}

// T: of the factors; Out: of the result; S: of alpha and beta.
template <class T, class Out, class S>
cublasStatus_t product(const char* name, cublasHandle_t handle, Shape shape, const void* alpha, Factor<T> a,
                       Factor<T> b, const void* beta, void* c, int leading, long long distance = 0, int batch = 1) {
  Call call(name, blas(handle));
  if (shape.m < 0 || shape.n < 0 || shape.k < 0 || batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (shape.m == 0 || shape.n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  call.reaches(a.first, a.bytes(shape.a, shape.m, shape.k, batch));
  call.reaches(b.first, b.bytes(shape.b, shape.k, shape.n, batch));
  call.reaches(c, extent<Out>(shape.m, shape.n, leading) + (batch - 1) * distance * sizeof(Out));
  Scalar<S> scale(call, blas(handle), alpha), keep(call, blas(handle), beta);
  if (std::is_same_v<T, half> && blas(handle).math == CUBLAS_TENSOR_OP_MATH) count_name(call.name + " on tensor cores");
  Arithmetic how;
  how.tf32 = std::is_same_v<T, float> && blas(handle).math == CUBLAS_TF32_TENSOR_OP_MATH && tf32_allowed();
  call.does([=] {
    for (int place = 0; place < batch; place++)
      add_product(shape, a.matrix(shape.a, place), b.matrix(shape.b, place), static_cast<Out*>(c) + place * distance,
                  leading, scale.value(), keep.value(), how);
  });
  return CUBLAS_STATUS_SUCCESS;
}

struct Array {
  const void* first;
  cudaDataType type;
  int leading;
  long long distance = 0;
};

// For arrays whose types are told at run time. alpha and beta are of type S.
template <class S>
cublasStatus_t product_of_types(const char* name, cublasHandle_t handle, Shape shape, const void* alpha, Array a,
                                Array b, const void* beta, void* c, Array result, int batch = 1) {
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  visit_type(a.type, [&](auto in) {
    visit_type(result.type, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      if (a.type == b.type && sizeof(Out) >= sizeof(In) && (sizeof(In) == 8) == (sizeof(S) == 8))
        status = product<In, Out, S>(name, handle, shape, alpha, {a.first, a.leading, a.distance},
                                     {b.first, b.leading, b.distance}, beta, c, result.leading, result.distance, batch);
    });
  });
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    fault(std::string(name) + " is given arrays of the types " + std::to_string(a.type) + ", " +
          std::to_string(b.type) + " and " + std::to_string(result.type) + ", which have no product here");
  return status;
}

cublasStatus_t product_computed_in(const char* name, cublasHandle_t handle, Shape shape, const void* alpha, Array a,
                                   Array b, const void* beta, void* c, Array result, cublasComputeType_t computed,
                                   int batch = 1) {
  switch (computed) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      return product_of_types<half>(name, handle, shape, alpha, a, b, beta, c, result, batch);
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return product_of_types<float>(name, handle, shape, alpha, a, b, beta, c, result, batch);
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return product_of_types<double>(name, handle, shape, alpha, a, b, beta, c, result, batch);
    default:
      fault(std::string(name) + " is to compute in a type that is not there: " + std::to_string(computed));
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

}  // namespace

extern "C" {

#define BATCHED_PRODUCT(letter, T, S)                                                                             \
  cublasStatus_t cublas##letter##gemmStridedBatched(                                                              \
      cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const T* alpha, \
      const T* a, int lda, long long distance_a, const T* b, int ldb, long long distance_b, const T* beta, T* c,  \
      int ldc, long long distance_c, int batch) {                                                                 \
    return product<S, S, S>("cublas" #letter "gemmStridedBatched", handle, {op_a, op_b, m, n, k}, alpha,          \
                            {a, lda, distance_a}, {b, ldb, distance_b}, beta, c, ldc, distance_c, batch);         \
  }
#define SINGLE_PRODUCT(letter, T)                                                                                      \
  cublasStatus_t cublas##letter##gemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, \
                                         int n, int k, const T* alpha, const T* a, int lda, const T* b, int ldb,       \
                                         const T* beta, T* c, int ldc) {                                               \
    return product<T, T, T>("cublas" #letter "gemm", handle, {op_a, op_b, m, n, k}, alpha, {a, lda}, {b, ldb}, beta,   \
                            c, ldc);                                                                                   \
  }
SINGLE_PRODUCT(S, float)
SINGLE_PRODUCT(D, double)
BATCHED_PRODUCT(S, float, float)
BATCHED_PRODUCT(D, double, double)
BATCHED_PRODUCT(H, __half, half)

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                             const float* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                             cudaDataType type_b, int ldb, const float* beta, void* c, cudaDataType type_c, int ldc) {
  return product_of_types<float>("cublasSgemmEx", handle, {op_a, op_b, m, n, k}, alpha, {a, type_a, lda},
                                 {b, type_b, ldb}, beta, c, {c, type_c, ldc});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t computed, cublasGemmAlgo_t) {
  return product_computed_in("cublasGemmEx", handle, {op_a, op_b, m, n, k}, alpha, {a, type_a, lda}, {b, type_b, ldb},
                             beta, c, {c, type_c, ldc}, computed);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void* alpha, const void* a, cudaDataType type_a, int lda,
                                          long long distance_a, const void* b, cudaDataType type_b, int ldb,
                                          long long distance_b, const void* beta, void* c, cudaDataType type_c, int ldc,
                                          long long distance_c, int batch, cublasComputeType_t computed,
                                          cublasGemmAlgo_t) {
  return product_computed_in("cublasGemmStridedBatchedEx", handle, {op_a, op_b, m, n, k}, alpha,
                             {a, type_a, lda, distance_a}, {b, type_b, ldb, distance_b}, beta, c,
                             {c, type_c, ldc, distance_c}, computed, batch);
}
}

}  // namespace gpus
